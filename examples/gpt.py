"""A GPT-2-class model with keys and values from before, in ONNX, with random weights."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

#: One block of the decoder: x [batch, seq, width] beside the keys and values of all tokens before; `seen` says which of them a
#: token may look at.
_LAYER = """
<domain: "example", opset_import: ["": 17]>
layer (x, past_key, past_value, seen, scale1, shift1, qkv_w, qkv_b, out_w, out_b, scale2, shift2, up_w, up_b, down_w, down_b)
  => (y, key, value)
{
  normed = LayerNormalization <axis = -1, epsilon = 0.00001> (x, scale1, shift1)
  merged = MatMul (normed, qkv_w)
  biased = Add (merged, qkv_b)
  q0, k0, v0 = Split <axis = -1> (biased)
  apart = Constant <value_ints = [0, 0, HEADS, HEAD]> ()
  q1 = Reshape (q0, apart)
  k1 = Reshape (k0, apart)
  v1 = Reshape (v0, apart)
  q = Transpose <perm = [0, 2, 1, 3]> (q1)
  k2 = Transpose <perm = [0, 2, 1, 3]> (k1)
  v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
  key = Concat <axis = 2> (past_key, k2)
  value = Concat <axis = 2> (past_value, v2)
  turned = Transpose <perm = [0, 1, 3, 2]> (key)
  products = MatMul (q, turned)
  root = Constant <value_float = ROOT> ()
  scores = Div (products, root)
  least = Constant <value_float = -3.4e38> ()
  masked = Where (seen, scores, least)
  shares = Softmax <axis = -1> (masked)
  mixed = MatMul (shares, value)
  tokens = Transpose <perm = [0, 2, 1, 3]> (mixed)
  together = Constant <value_ints = [0, 0, WIDTH]> ()
  context = Reshape (tokens, together)
  out0 = MatMul (context, out_w)
  out1 = Add (out0, out_b)
  h = Add (x, out1)
  normed2 = LayerNormalization <axis = -1, epsilon = 0.00001> (h, scale2, shift2)
  up0 = MatMul (normed2, up_w)
  up = Add (up0, up_b)
  three = Constant <value_float = 3.0> ()
  cube = Pow (up, three)
  c1 = Constant <value_float = 0.044715> ()
  bent = Mul (cube, c1)
  both = Add (up, bent)
  c2 = Constant <value_float = 0.7978846> ()
  inside = Mul (both, c2)
  tanh = Tanh (inside)
  one = Constant <value_float = 1.0> ()
  more = Add (tanh, one)
  half = Constant <value_float = 0.5> ()
  part = Mul (up, half)
  gelu = Mul (part, more)
  down0 = MatMul (gelu, down_w)
  down = Add (down0, down_b)
  y = Add (h, down)
}
"""
_HELD = ("scale1", "shift1", "qkv_w", "qkv_b", "out_w", "out_b", "scale2", "shift2", "up_w", "up_b", "down_w", "down_b")


def gpt(layers: int, width: int, heads: int, words: int, most: int) -> onnx.ModelProto:
    """logits [batch, seq, words] and each layer's keys and values [batch, heads, past + seq, width / heads] of `input_ids`
    [batch, seq] and those of `past` tokens; at most so many tokens in all."""
    head = width // heads
    pasts = [f"past_{kind}_{k}" for k in range(layers) for kind in ("key", "value")]
    presents = [f"present_{kind}_{k}" for k in range(layers) for kind in ("key", "value")]
    given = ", ".join(f"float[batch, {heads}, past, {head}] {name}" for name in pasts)
    made = ", ".join(f"float[batch, {heads}, total, {head}] {name}" for name in presents)
    body = [
        "one = Constant <value_int = 1> ()", "axis1 = Constant <value_ints = [1]> ()",
        "seq0 = Shape <start = 1, end = 2> (input_ids)", "past0 = Shape <start = 2, end = 3> (past_key_0)",
        "total0 = Add (past0, seq0)", "first = Squeeze (past0)", "last = Squeeze (total0)",
        "zero = Constant <value_int = 0> ()", "keys = Range (zero, last, one)", "own = Range (first, last, one)",
        "queries = Unsqueeze (own, axis1)", "seen = LessOrEqual (keys, queries)",
        "embedded = Gather (words, input_ids)", "placed = Gather (places, own)", "x0 = Add (embedded, placed)"]
    for k in range(layers):
        held = ", ".join(f"{name}_{k}" for name in _HELD)
        body.append(f"x{k + 1}, present_key_{k}, present_value_{k} = example.layer "
                    f"(x{k}, past_key_{k}, past_value_{k}, seen, {held})")
    body += [f"top = LayerNormalization <axis = -1, epsilon = 0.00001> (x{layers}, scale, shift)",
             "logits = MatMul (top, back)"]
    numbers = {"HEADS": heads, "HEAD": head, "ROOT": head ** 0.5, "WIDTH": width}
    layer = _LAYER
    for name, number in numbers.items():
        layer = layer.replace(name, str(number))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17, "example": 1]> gpt (int64[batch, seq] input_ids, {given}) '
        f'=> (float[batch, seq, {words}] logits, {made}) {{ {" ".join(body)} }} {layer}')
    shapes = {"words": (words, width), "places": (most, width), "scale": (width,), "shift": (width,), "back": (width, words)}
    own = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    for k in range(layers):
        shapes |= {f"{name}{n}_{k}": (width,) for name in ("scale", "shift") for n in (1, 2)}
        for name, shape in own.items():
            shapes |= {f"{name}_w_{k}": shape, f"{name}_b_{k}": shape[1:]}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        drawn = rng.standard_normal(shape, np.float32) * np.float32(0.05) + np.float32(name.startswith("scale"))
        model.graph.initializer.append(numpy_helper.from_array(drawn, name))
    return model
