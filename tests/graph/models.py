"""Small ONNX models in the textual form, for the tests of fusion and lowering."""

from __future__ import annotations

import onnx
from onnx import parser


def model(body: str, inputs: str, outputs: str, constants: str = "", opset: int = 17) -> onnx.ModelProto:
    """A model from its node lines; `constants` are `type name = {..}` initialisers of the graph."""
    initialisers = f"<{constants}>" if constants else ""
    text = f'<ir_version: 8, opset_import: ["" : {opset}]>\nmain ({inputs}) => ({outputs}) {initialisers} {{\n{body}\n}}'
    return parser.parse_model(text)


ERF_GELU = """
    h = MatMul(x, w)
    hb = Add(h, b)
    s = Div(hb, root2)
    e = Erf(s)
    e1 = Add(e, one)
    g = Mul(hb, e1)
    gh = Mul(g, half)
    y = Add(gh, r)"""

ATTENTION = """
    q0 = MatMul(x, wq)
    k0 = MatMul(x, wk)
    v0 = MatMul(x, wv)
    q1 = Reshape(q0, split)
    k1 = Reshape(k0, split)
    v1 = Reshape(v0, split)
    q = Transpose<perm = [0, 2, 1, 3]>(q1)
    k = Transpose<perm = [0, 2, 3, 1]>(k1)
    v = Transpose<perm = [0, 2, 1, 3]>(v1)
    qs = Mul(q, scale)
    s = MatMul(qs, k)
    sm = Add(s, mask)
    p = Softmax<axis = -1>(sm)
    o = MatMul(p, v)
    ot = Transpose<perm = [0, 2, 1, 3]>(o)
    om = Reshape(ot, merge)
    pr = MatMul(om, wo)
    y = Add(pr, x)"""


def gelu() -> onnx.ModelProto:
    """x @ w + b through an erf-GELU with a residual."""
    return model(ERF_GELU, "float[B, L, 6] x, float[B, L, 10] r, float[6, 10] w, float[10] b", "float[B, L, 10] y",
                 "float root2 = {1.4142135}, float one = {1.0}, float half = {0.5}")


def attention() -> onnx.ModelProto:
    """Multi-head attention (2 heads of 3) with a mask of its own shape and a residual."""
    weights = ", ".join(f"float[6, 6] {w}" for w in ("wq", "wk", "wv", "wo"))
    return model(ATTENTION, f"float[B, L, 6] x, float[B, 1, 1, L] mask, {weights}", "float[B, L, 6] y",
                 "float scale = {0.5}, int64[4] split = {0, 0, 2, 3}, int64[3] merge = {0, 0, 6}")
