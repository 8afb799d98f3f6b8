"""What symbolic proofs leave open about an index, decided by isl: all that is known of sizes and variables, taken together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tsc.loop_ir.bounds import Prover
from tsc.poly import PatternMismatch, isl
from tsc.poly.affine import size_text
from tsc.sym import SymExpr, dim
from tsc.sym.affine import is_quasi_affine
from tsc.sym.expr import Apply, apply
from tsc.sym.facts import Facts

#: isl operations that one question may take.
OPERATIONS = 500_000


def prover(known: isl.Set) -> Prover:
    """Proves for the sizes in `known` what is affine once products and quotients by sizes have names of their own."""
    return partial(_nonneg, known)


def _nonneg(known: isl.Set, expr: SymExpr, margins: Sequence[SymExpr], facts: Facts) -> bool:
    opaque: dict[SymExpr, str] = {}
    names = dict.fromkeys(facts.known)

    def text(e: SymExpr) -> str:
        found = _affine(e, opaque)
        names.update(dict.fromkeys(sorted(found.dims())))  # also of variables that nothing is known of
        return size_text(found) or "0"

    held = [f"{text(expr)} <= -1", *(f"{text(margin)} >= 0" for margin in margins)]
    for name, of in facts.known.items():
        held += [f"{text(low)} <= {name}" for low in of.lows] + [f"{name} <= {text(high)}" for high in of.highs]
        held += [f"{name} mod {of.divisor} = 0"] if of.divisor > 1 else []
    sizes, variables = sorted(facts.sizes), [n for n in names if n not in facts.sizes]
    try:
        with isl.budget(OPERATIONS):
            wrong = isl.Set(f"[{', '.join(sizes)}] -> {{ [{', '.join(variables)}] : {' and '.join(held)} }}")
            return bool(wrong.intersect_params(known).is_empty())
    except PatternMismatch:
        return False


def _affine(expr: SymExpr, opaque: dict[SymExpr, str]) -> SymExpr:
    """`expr` with a name in `opaque` for each part that is not affine, and each name that is none to isl."""
    total = SymExpr.of(0)
    for monomial, coefficient in expr.terms:
        part = SymExpr(((monomial, 1),))
        match monomial:
            case ():
                pass
            case (only,) if is_quasi_affine(only):
                part = apply(only.fn, [_affine(a, opaque) for a in only.args])
            case (only,) if not isinstance(only, Apply) and only.name.isidentifier():
                pass
            case _:
                part = dim(opaque.setdefault(part, f"opaque{len(opaque)}_"))
        total = total + part * coefficient
    return total
