"""Control flow: If, where constants or sizes say which of its graphs stands for it."""

from __future__ import annotations

from typing import NoReturn

from tsc.errors import ModelError, UnsupportedError
from tsc.ir import Graph, Node
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind
from tsc.ops.shapes import where


def _chosen(ctx: InferContext) -> Graph:
    """The graph that a condition chooses. Raises UnsupportedError where only the run knows."""
    if ctx.type(0).dtype != "bool":
        raise ModelError(f"{where(ctx)} has a condition of {ctx.type(0).dtype}, expected bool; cast it")
    held = ctx.contents[0]
    if held is not None and held.size != 1:
        raise ModelError(f"{where(ctx)} has {held.size} conditions, expected 1")
    known = None if held is None else held.reshape(()).item().as_int()
    if known is None:
        _undecided(ctx)
    branch = ctx.attr("then_branch" if known else "else_branch")
    assert isinstance(branch, Graph)
    if len(branch.outputs) != len(ctx.node.outputs):
        raise ModelError(f"{where(ctx)} has {len(ctx.node.outputs)} outputs, but its graph makes {len(branch.outputs)}")
    return branch


def _undecided(ctx: InferContext) -> NoReturn:
    raise UnsupportedError(f"{where(ctx)} depends on the condition '{ctx.node.inputs[0]}', which neither constants nor the "
                           "sizes of inputs decide; where it is one of sizes, give dims that decide it (dims={'length': (512, "
                           "576)}), else export the model without it")


def _never(builder: Builder) -> tuple[str, ...]:
    _undecided(builder.infer)


def handed_on(value: str, output: str, name: str) -> Node:
    """A node that gives a value another name."""
    return Node("Identity", (value,), (output,), {}, name)


OPS: tuple[OpDef, ...] = (
    OpDef("If", PatternKind.OPAQUE, _undecided, decompose=_never, samples=list, chosen=_chosen,
          reads=("then_branch", "else_branch")),
)
