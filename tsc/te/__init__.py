"""The tensor DSL: scalar expressions, Computes over named axes with declared monoids, and a NumPy evaluator."""
