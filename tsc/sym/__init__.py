"""Symbolic sizes: expressions, facts about them, and the guards that facts assumed leave behind."""

from tsc.sym.env import GREATEST, Guard, Range, ShapeEnv
from tsc.sym.expr import ONE, ZERO, Dim, OversizeError, SymExpr, ceildiv, dim, exact_quotient, parse, product, sym_max, sym_min
from tsc.sym.names import identifier

__all__ = [
    "GREATEST", "ONE", "ZERO", "Dim", "Guard", "OversizeError", "Range", "ShapeEnv", "SymExpr", "ceildiv", "dim",
    "exact_quotient", "identifier", "parse", "product", "sym_max", "sym_min",
]
