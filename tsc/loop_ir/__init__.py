"""Loop IR: nodes, verifier, simplifier, interpreter, printer, and the passes between isl's AST and a source file."""
