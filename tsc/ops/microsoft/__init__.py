"""ONNX Runtime's fused operators (domain com.microsoft), which its optimisers and exporters write, by what they are made of.

Their definitions are `ContribOperators.md` of ONNX Runtime, where that is silent what its CPU kernels do.
"""

from __future__ import annotations

from tsc.ops.base import OpDef
from tsc.ops.microsoft import (
    attention,
    blockwise,
    fused,
    grouped,
    normalized,
    quantized,
    quantized_layers,
    quantized_lstm,
)

OPS: tuple[OpDef, ...] = (
    *fused.OPS, *normalized.OPS, *attention.OPS, *grouped.OPS, *quantized.OPS, *blockwise.OPS, *quantized_layers.OPS,
    *quantized_lstm.OPS,
)
