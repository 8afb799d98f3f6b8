"""The operators: one OpDef each, in themed modules, listed in one explicit table."""

from __future__ import annotations

from tsc.errors import InternalError
from tsc.ir import Node
from tsc.ops import (
    activation,
    attention,
    bits,
    causal_conv,
    contraction,
    control,
    counted,
    define,
    determinant,
    einsum,
    elementwise,
    fold,
    generate,
    grid_sample,
    indexing,
    linear_attention,
    logical,
    microsoft,
    ml,
    movement,
    normalization,
    norms,
    pool,
    quantize,
    recurrent,
    reduce,
    resize,
    sampled,
    scatter,
    spectral,
    suppression,
    topk,
    transposed,
    trigonometry,
    unique,
    unpool,
    words,
)
from tsc.ops.base import OpDef

_OPS: tuple[OpDef, ...] = (
    *elementwise.OPS, *logical.OPS, *bits.OPS, *activation.OPS, *movement.OPS, *indexing.OPS, *generate.OPS, *reduce.OPS,
    *contraction.OPS, *einsum.OPS, *transposed.OPS, *normalization.OPS, *norms.OPS, *pool.OPS, *define.OPS, *resize.OPS,
    *grid_sample.OPS, *quantize.OPS, *fold.OPS, *attention.OPS, *spectral.OPS, *recurrent.OPS, *control.OPS, *trigonometry.OPS,
    *scatter.OPS, *unpool.OPS, *topk.OPS, *counted.OPS, *unique.OPS, *suppression.OPS, *sampled.OPS, *linear_attention.OPS,
    *causal_conv.OPS, *determinant.OPS, *microsoft.OPS, *ml.OPS, *words.OPS,
)
_BY_NAME = {(op.domain, op.name): op for op in _OPS}


def find(op: str, domain: str = "") -> OpDef | None:
    """The definition of an operator, or None. The compiler's own primitives (domain "tsc") are found without a domain too."""
    found = _BY_NAME.get(("" if domain == "ai.onnx" else domain, op))
    return _BY_NAME.get(("tsc", op)) if found is None and not domain else found


def definition(node: Node) -> OpDef:
    """The OpDef of a node that import has accepted."""
    found = find(node.op, node.domain)
    if found is None:
        raise InternalError(f"node '{node.name}' ({node.op}) came past import without an OpDef")
    return found


def instead(op: str, domain: str) -> str:
    """What to do about an operator that is not supported, where there is something."""
    return ml.INSTEAD.get(op, "") if domain == ml.DOMAIN else ""


def all_ops() -> tuple[OpDef, ...]:
    """Every operator, in the order of the table."""
    return _OPS
