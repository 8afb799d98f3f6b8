"""The shape that a Reshape asks for: what -1 and 0 stand for in it, also where only a run says so."""

from __future__ import annotations

from collections.abc import Sequence

from tsc.errors import ModelError
from tsc.ops.base import InferContext
from tsc.ops.shapes import Shape, canonical, named, where
from tsc.sym import ONE, ZERO, SymExpr, product, sym_max, sym_min


def reshape_target(ctx: InferContext) -> Shape:
    """Input 1 as the shape of input 0's elements. Raises ModelError for one that cannot be."""
    source = canonical(ctx, 0)
    if (rank := ctx.known(1, "shape").ndim) != 1:
        raise ModelError(f"{where(ctx)} has a shape of rank {rank}, expected a list")
    wanted = [ctx.env.canon(d) for d in ctx.known(1, "shape")]
    wanted = _told_sizes(ctx, wanted, source)
    inferred = [k for k, d in enumerate(wanted) if d.as_int() == -1]
    if len(inferred) > 1:
        raise ModelError(f"{where(ctx)} has {len(inferred)} dims of -1, expected at most one")
    for k, d in enumerate(wanted):
        if k not in inferred:
            if ctx.env.prove_lt(d, 0):
                raise ModelError(f"{where(ctx)} asks for a dim of {d}, expected none below -1")
            ctx.env.assume_le(0, d, f"{where(ctx)}: no dim may be negative")
    if not ctx.attr("allowzero", 0):
        wanted = [d if k in inferred else _zero_copies(ctx, d, k, source) for k, d in enumerate(wanted)]
    reason = f"{where(ctx)}: the number of elements must not change"
    if inferred:
        given, wanted_rest = _uncommon(source, [d for k, d in enumerate(wanted) if k != inferred[0]])
        if product(wanted_rest) == ZERO:
            raise ModelError(f"{where(ctx)} cannot infer -1 beside a dim of 0")
        quotient = product(given) // product(wanted_rest)
        if quotient * product(wanted_rest) != product(given):
            likely = _likely_equal(given, wanted_rest, wanted[:inferred[0]])
            ctx.env.assume_eq(*likely, f"{reason}, and -1 must be inferred without remainder")
            given, wanted_rest = ([ctx.env.canon(d) for d in dims] for dims in (given, wanted_rest))
            quotient = product(given) // product(wanted_rest)
        wanted[inferred[0]] = ctx.env.canon(quotient)
    left, right = _uncommon(source, wanted)
    ctx.env.assume_eq(product(left), product(right), reason)
    return tuple(ctx.env.canon(d) for d in wanted)


def _told_sizes(ctx: InferContext, wanted: Sequence[SymExpr], source: Shape) -> list[SymExpr]:
    """What only a run says, an input that may hold -1 or 0, as what these stand for there; the others as they are."""
    env, node = ctx.env, where(ctx)
    told = [k for k, d in enumerate(wanted) if env.is_signed(d)]
    if not told:
        return list(wanted)
    left = [sym_max(-d, 0) if k in told else SymExpr.of(int(d == -ONE)) for k, d in enumerate(wanted)]  # 1 for a -1
    given = [sym_max(d, 0) for d in wanted]
    for k in told:
        env.assume_le(-1, wanted[k], f"{node}: no dim may be below -1")
        size = sym_max(wanted[k], -wanted[k])
        if not ctx.attr("allowzero", 0) and k < len(source):
            given[k] = given[k] + (1 - sym_min(size, 1)) * source[k]
        elif not ctx.attr("allowzero", 0):
            env.assume_le(1, size, f"{node}: without allowzero 0 copies dim {k}, which its input lacks")
    env.assume_le(sum(left, ZERO), 1, f"{node}: at most one dim may be -1")
    apart = [named(ctx, f"apart_{k}", g + i) for k, (g, i) in enumerate(zip(given, left))]
    env.assume_le(sum(left, ZERO), product(apart), f"{node}: -1 cannot be inferred beside a dim of 0")
    rest = named(ctx, "rest", product(source) // sym_max(product(apart), 1))
    return [named(ctx, str(k), given[k] + left[k] * rest) if k in told else d for k, d in enumerate(wanted)]


def _zero_copies(ctx: InferContext, wanted: SymExpr, k: int, source: Shape) -> SymExpr:
    """Dim `k` where 0 stands for the input's: what is computed as 0 in a run must be 0 there too, or it means another shape."""
    if wanted == ZERO:
        if k >= len(source):
            raise ModelError(f"{where(ctx)} copies dim {k}, but its input has rank {len(source)}")
        return source[k]
    if ctx.env.prove_le(1, wanted):
        return wanted
    if k >= len(source):
        ctx.env.assume_le(1, wanted, f"{where(ctx)}: without allowzero 0 copies dim {k}, which its input lacks")
    elif source[k] // wanted * wanted != source[k]:  # no multiple of it, which is 0 where it is
        ctx.env.assume_le(sym_min(source[k], 1), wanted, f"{where(ctx)}: without allowzero 0 copies dim {k} of the input")
    return wanted


def _uncommon(a: Sequence[SymExpr], b: Sequence[SymExpr]) -> tuple[list[SymExpr], list[SymExpr]]:
    """Both lists without the dims that they share, which may be sums that a polynomial division cannot cancel."""
    left, right = list(a), []
    for d in b:
        if d in left and d != ZERO:
            left.remove(d)
        else:
            right.append(d)
    return left, right


def _likely_equal(given: Sequence[SymExpr], wanted: Sequence[SymExpr],
                  before: Sequence[SymExpr]) -> tuple[SymExpr, SymExpr]:
    """What to assume where a dim of -1, which comes after the dims `before`, does not divide exactly.

    Exporters name equal dims apart: in a view of [a, b] as [c, -1] two leading bare Dims mean the same size. Otherwise, as in a
    view of [a, b] as [-1, c, b], which divides a, only that the division leaves no remainder is assumed.
    """
    if wanted and given and wanted[0] in before and given[0].as_dim() is not None and wanted[0].as_dim() is not None:
        return given[0], wanted[0]
    rest = product(wanted)
    return product(given), product(given) // rest * rest
