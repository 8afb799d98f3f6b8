"""Einsum: diagonals and sums of single operands first, then two at a time; the primitives Diagonal and Contract it is made of.

An equation is read into labels, one an axis: a letter, or the place from the right of an axis that an ellipsis stands for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Reduction, Sample
from tsc.ops.reduce import reduction
from tsc.ops.samples import floats, ints
from tsc.ops.shapes import canonical, tensor, unify, where
from tsc.sym import ONE, SymExpr
from tsc.te.compute import SUM
from tsc.te.expr import Expr, index, mul

#: What names an axis: a letter, or how far from the end of an ellipsis it is.
Label: TypeAlias = str | int
Labels: TypeAlias = tuple[Label, ...]

_TERM = re.compile(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*")


@dataclass(frozen=True, slots=True)
class Equation:
    """The labels of each operand's axes, and of the result's."""

    operands: tuple[Labels, ...]
    result: Labels


def read_equation(ctx: InferContext) -> Equation:
    """The node's equation for operands of these ranks. Raises ModelError where it is none or does not fit them."""
    text = "".join(str(ctx.attr("equation", "")).split())
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    ranks = [ctx.type(i).rank for i in range(len(ctx.node.inputs))]
    if len(terms) != len(ranks):
        raise ModelError(f"{where(ctx)} has the equation '{text}' of {len(terms)} terms for {len(ranks)} inputs")
    operands = tuple(_labels(ctx, text, term, rank) for term, rank in zip(terms, ranks))
    every = [label for labels in operands for label in labels]
    hidden = tuple(sorted({label for label in every if isinstance(label, int)}, reverse=True))
    if not arrow:
        letters = sorted({label for label in every if isinstance(label, str)})
        return Equation(operands, (*hidden, *(label for label in letters if every.count(label) == 1)))
    found = _labels(ctx, text, right, None if "..." in right else len(right), hidden)
    if len(set(found)) < len(found) or not set(found) <= set(every):
        raise ModelError(f"{where(ctx)} has the equation '{text}', whose result has a label twice or of no operand")
    return Equation(operands, found)


def _labels(ctx: InferContext, text: str, term: str, rank: int | None, hidden: Labels = ()) -> Labels:
    """A term's labels; an ellipsis stands for the axes that letters leave of the rank, or for those that are `hidden`."""
    if not _TERM.fullmatch(term):
        raise ModelError(f"{where(ctx)} has the equation '{text}', in which '{term}' is no list of letters with an ellipsis")
    before, dots, after = term.partition("...")
    if rank is None:
        return (*before, *hidden, *after)
    between = rank - len(before) - len(after)
    if between < 0 or (between and not dots):
        raise ModelError(f"{where(ctx)} has the equation '{text}', whose term '{term}' does not fit a tensor of rank {rank}")
    return (*before, *range(between, 0, -1), *after)


def _extents(ctx: InferContext, operands: Sequence[Labels]) -> Mapping[Label, SymExpr]:
    """The size of each label, of which operands of one element have any; within one operand axes of one label are equal."""
    found: dict[Label, SymExpr] = {}
    for i, labels in enumerate(operands):
        own: dict[Label, SymExpr] = {}
        for label, extent in zip(labels, canonical(ctx, i)):
            if label in own:
                unify(ctx.env, own[label], extent, f"{where(ctx)}: axes of one label must be equal")
            own[label] = extent
            known = found.get(label, ONE)
            if known == ONE or extent == ONE:
                found[label] = extent if known == ONE else known
            else:
                found[label] = unify(ctx.env, known, extent, f"{where(ctx)}: axes of one label must be equal")
    return found


def _einsum_types(ctx: InferContext) -> tuple[TensorType, ...]:
    equation = read_equation(ctx)
    extents = _extents(ctx, equation.operands)
    return tensor(ctx.type(0).dtype, [ctx.env.canon(extents[label]) for label in equation.result])


def _einsum(builder: Builder) -> tuple[str, ...]:
    """Two operands at a time, from the left; what no later one has and the result has not is summed as soon as it can be."""
    ctx = builder.infer
    equation = read_equation(ctx)
    name, labels = "", tuple[Label, ...]()
    for i, operand in enumerate(ctx.node.inputs):
        later = {label for own in equation.operands[i + 1:] for label in own} | set(equation.result)
        own = _alone(builder, operand, equation.operands[i], {*later, *labels})
        name, labels = _product(builder, (name, labels), own, later) if name else own
    perm = tuple(labels.index(label) for label in equation.result)
    return (name if perm == tuple(range(len(perm))) else builder.emit("Transpose", name, perm=perm),)


def _alone(builder: Builder, name: str, labels: Labels, wanted: set[Label]) -> tuple[str, Labels]:
    """An operand each of whose axes has a label of its own, and only those that are wanted: diagonals taken, others summed."""
    if len(set(labels)) < len(labels):
        name = builder.emit("Diagonal", name, labels=labels)
        labels = tuple(dict.fromkeys(labels))
    axes = [k for k, label in enumerate(labels) if label not in wanted]
    if axes:
        name = reduction(builder, "ReduceSum", name, axes, 0)
    return name, tuple(label for label in labels if label in wanted)


def _product(builder: Builder, a: tuple[str, Labels], b: tuple[str, Labels], wanted: set[Label]) -> tuple[str, Labels]:
    """The product of two operands, summed over what is not wanted of both."""
    together = tuple(dict.fromkeys((*a[1], *b[1])))
    result = tuple(label for label in together if label in wanted)
    if len(result) < len(together):
        return builder.emit("Contract", a[0], b[0], left=a[1], right=b[1], result=result), result
    return builder.emit("Mul", *(_spread(builder, *one, together) for one in (a, b))), together


def _spread(builder: Builder, name: str, labels: Labels, together: Labels) -> str:
    """An operand with its axes in the order of `together`, and an axis of one element for each that it lacks."""
    perm = tuple(labels.index(label) for label in together if label in labels)
    if perm != tuple(range(len(perm))):
        name = builder.emit("Transpose", name, perm=perm)
    axes = tuple(k for k, label in enumerate(together) if label not in labels)
    return builder.emit("Unsqueeze", name, axes=axes) if axes else name


# -- the primitives ----------------------------------------------------------------------------------------------

def _diagonal_types(ctx: InferContext) -> tuple[TensorType, ...]:
    labels: Labels = ctx.attr("labels")
    extents = _extents(ctx, [labels])
    return tensor(ctx.type(0).dtype, [ctx.env.canon(extents[label]) for label in dict.fromkeys(labels)])


def _diagonal_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    labels: Labels = lowering.infer.attr("labels")
    place = dict(zip(dict.fromkeys(labels), at))
    return _read(lowering, 0, labels, place)


def _contract_types(ctx: InferContext) -> tuple[TensorType, ...]:
    extents = _extents(ctx, [ctx.attr("left"), ctx.attr("right")])
    return tensor(ctx.type(0).dtype, [ctx.env.canon(extents[label]) for label in ctx.attr("result")])


def _contract_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Reduction:
    ctx = lowering.infer
    left, right, result = ctx.attr("left"), ctx.attr("right"), ctx.attr("result")
    extents = _extents(ctx, [left, right])
    axes = {label: lowering.axis("k", ctx.env.canon(extents[label])) for label in dict.fromkeys((*left, *right))
            if label not in result}
    place = {**dict(zip(result, at)), **{label: lowering.var(axis) for label, axis in axes.items()}}
    return Reduction(SUM, tuple(axes.values()), mul(_read(lowering, 0, left, place), _read(lowering, 1, right, place)))


def _read(lowering: Lowering, i: int, labels: Labels, place: Mapping[Label, Expr]) -> Expr:
    """The element of an operand where its labels say; an axis of one element is repeated."""
    shape = canonical(lowering.infer, i)
    return lowering.read(i, tuple(index(0) if extent == ONE else place[label] for label, extent in zip(labels, shape)))


# -- samples -----------------------------------------------------------------------------------------------------

def _einsums() -> Sequence[Sample]:
    def of(equation: str, *shapes: tuple[int, ...]) -> Sample:
        return Sample([floats(*shape) for shape in shapes], {"equation": equation})

    return [
        of("ij,jk->ik", (3, 5), (5, 7)), of("bij, bjk -> bik", (2, 3, 5), (2, 5, 4)), of("ij,ij->i", (3, 5), (3, 5)),
        of("...ij,...jk->...ik", (2, 1, 3, 5), (4, 5, 2)), of("bhwc,hkc->bhwk", (2, 3, 4, 5), (3, 6, 5)),
        of("i,j->ij", (3,), (5,)), of("ij->ji", (3, 5)), of("ij->i", (3, 5)), of("ij->", (3, 5)), of("ii->i", (4, 4)),
        of("ii", (4, 4)), of("...ii->...i", (2, 3, 3)), of("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
        of("ab,cd->ac", (2, 3), (4, 5)), of("ij,kj", (3, 5), (4, 5)), of("bi,ij->bj", (1, 5), (5, 3)),
        Sample([ints(3, 4, dtype="int32"), ints(4, 2, dtype="int32")], {"equation": "ij,jk->ik"})]


OPS: tuple[OpDef, ...] = (
    OpDef("Einsum", PatternKind.CONTRACTION, _einsum_types, decompose=_einsum, samples=_einsums, reads=("equation",)),
    OpDef("Contract", PatternKind.CONTRACTION, _contract_types, te=_contract_te, domain="tsc"),
    OpDef("Diagonal", PatternKind.INJECTIVE, _diagonal_types, te=_diagonal_te, domain="tsc"),
)
