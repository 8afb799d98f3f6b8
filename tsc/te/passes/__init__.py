"""Program -> Program with the same values, before polyhedra see it; and the facts of its sizes."""
