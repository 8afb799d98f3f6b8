"""States that begin empty: which dims may be 0 though nobody says so, and runs that begin with none."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tsc
from tests.graph.models import model
from tests.models.test_shared_models import FOLDER
from tsc.graph.onnx.importer import import_onnx

TAIL = "e = Exp(x) y = Concat<axis={axis}>(past, e)"
SAME = "e = Exp(x) y = Concat<axis=0>(same, e)"


@pytest.mark.parametrize(("inputs", "body", "dims", "least"), [
    ("float[p, 3] past, float[n, 3] x", TAIL.format(axis=0), {}, {"p": 0, "n": 1}),
    ("float[3, p] past, float[3, n] x", TAIL.format(axis=-1), {}, {"p": 0, "n": 1}),
    ("float[p, 3] past, float[n, 3] x", TAIL.format(axis=0) + " s = Shape(past)", {}, {"p": 0}),    # it asks how many there are
    ("float[p, k] past, float[n, k] x", TAIL.format(axis=0), {}, {"p": 0, "k": 1}),
    ("float[p, 3] past, float[n, 3] x", TAIL.format(axis=0), {"p": (2, 9)}, {"p": 2}),              # the user knows better
    ("float[p, 3] past, float[p, 3] x", TAIL.format(axis=0), {}, {"p": 1}),                         # it is another one's, too
    ("float[p, 3] past, float[n, 3] x", TAIL.format(axis=0) + " z = Relu(past)", {}, {"p": 1}),     # it is read by itself
    ("float[p, 3] past, float[n, 3] x", "y = Concat<axis=0>(past, x)", {}, {"p": 1, "n": 1}),       # both are data
    ("float[p, 3] past, float[n, 3] x", TAIL.format(axis=0) + " z = Concat<axis=1>(past, past, e)", {}, {"p": 1}),
    ("float[p, 3] past, float[n, 3] x", f"same = Concat<axis=0>(past) {SAME}", {}, {"p": 0}),
    ("float[p, 3] past, float[n, 3] x", f"same = Concat<axis=0>(past) {SAME} z = Relu(same)", {}, {"p": 1})])
def test_which_dims_may_be_empty(inputs: str, body: str, dims: dict[str, Any], least: dict[str, int]) -> None:
    _, env = import_onnx(model(body, inputs, "float[q, r] y"), dims)
    assert {name: env.ranges[name].lo for name in least} == least


def test_a_name_that_is_left_out_is_no_state() -> None:
    """Nothing is read where an operand is left out, though a node before gives its output no name."""
    made = model(f"{TAIL.format(axis=0)} z = Clip(e)", "float[p, 3] past, float[n, 3] x", "float[q, 3] y, float[n, 3] z")
    made.graph.node.insert(0, onnx.helper.make_node("Concat", ["past"], [""], axis=0))
    made.graph.node[-1].input.append("")
    assert import_onnx(made)[1].ranges["p"].lo == 0


@pytest.mark.parametrize("target", ["cpu", "cpu-generic", "emu:sm_80"])
def test_a_state_grows_from_nothing(target: str) -> None:
    body = f"{TAIL.format(axis=0)} z = ReduceSum<keepdims=0>(y)"
    made = model(body, "float[p, 3] past, float[n, 3] x", "float[q, r] y, float z")
    executable, rng = tsc.compile(made, target=target), np.random.default_rng(0)
    state, rows = np.empty((0, 3), np.float32), []
    for _ in range(4):
        x = rng.standard_normal((2, 3), np.float32)
        rows.append(np.exp(x))
        state, total = executable.run(None, {"past": state, "x": x})
        np.testing.assert_allclose(state, np.concatenate(rows), rtol=1e-6)
        np.testing.assert_allclose(total, np.concatenate(rows).sum(), rtol=1e-5)


def test_attention_begins_without_a_past() -> None:
    made = model("y, nk, nv = Attention<is_causal=1>(q, k, v, , pk, pv)",
                 "float[b, 2, n, 4] q, float[b, 2, n, 4] k, float[b, 2, n, 4] v, float[b, 2, p, 4] pk, float[b, 2, p, 4] pv",
                 "float[b, 2, n, 4] y, float[b, 2, t, 4] nk, float[b, 2, t, 4] nv", opset=23)
    executable, rng = tsc.compile(made), np.random.default_rng(0)
    reference = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    past = [np.empty((2, 2, 0, 4), np.float32)] * 2
    for length in (3, 1, 1):
        q, k, v = (rng.standard_normal((2, 2, length, 4), np.float32) for _ in range(3))
        feeds = {"q": q, "k": k, "v": v, "pk": past[0], "pv": past[1]}
        got, want = executable.run(None, feeds), reference.run(None, feeds)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        past = list(want[1:])


@pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no models at {FOLDER}")
@pytest.mark.parametrize("name", ["gpt2_kv.ts", "llama_kv.dynamo"])
def test_exported_decoders_begin_without_a_past(name: str) -> None:
    """As ONNX Runtime runs them: the whole prompt first, then a token at a time, and the same logits."""
    path = FOLDER / f"{name}.onnx"
    executable, rng = tsc.compile(path), np.random.default_rng(0)
    reference = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    pasts = [spec for spec in reference.get_inputs() if spec.name.startswith("past")]
    held, total = [np.empty((2, spec.shape[1], 0, spec.shape[3]), np.float32) for spec in pasts], 0
    for length in (5, 1, 1):
        total += length
        feeds = {"input_ids": rng.integers(0, 99, (2, length)), "attention_mask": np.ones((2, total), np.int64)}
        feeds |= {spec.name: array for spec, array in zip(pasts, held)}
        got, want = executable.run(None, feeds), reference.run(None, feeds)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        held = list(want[1:])
