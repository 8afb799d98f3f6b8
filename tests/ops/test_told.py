"""Sizes, places and axes that an input holds: Dims that are told before a run as shapes are, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import tsc
from tsc.errors import InputError, ShapeError, UnsupportedError

Feeds = dict[str, np.ndarray[Any, Any]]
RNG = np.random.default_rng(7)
A, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 4), (5, 1, 7)))


def whole(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def model(signature: str, body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {signature} {{ {body} }}')


def fed(name: str, values: Sequence[tuple[int, ...] | int], x: Sequence[np.ndarray[Any, Any]] = (A,)) -> list[Feeds]:
    return [{"x": one, name: np.array(v, np.int64)} for one in x for v in values]


#: Signature, body, and what is fed.
CASES: dict[str, tuple[str, str, list[Feeds]]] = {
    "reshape": ("(float[a,b,c] x, int64[3] s) => (float[p,q,r] y)", "y = Reshape(x, s)", fed("s", [
        (4, 3, 2), (24, 1, 1), (2, -1, 2), (-1, 1, 3), (0, 0, 0), (0, -1, 2)])),
    "reshape to a longer list": ("(float[a,b,c] x, int64[5] s) => (float[p,q,r,t,u] y)", "y = Reshape(x, s)", fed("s", [
        (1, 4, 3, 2, 1), (0, 0, 1, -1, 2)])),
    "reshape where 0 is 0": ("(float[0,3] x, int64[3] s) => (float[p,q,r] y)", "y = Reshape<allowzero=1>(x, s)", [
        {"x": np.zeros((0, 3), np.float32), "s": whole(*s)} for s in ((3, 0, 5), (0, 1, 1))]),
    "a list that is computed": (
        "(float[a,b,c] x, int64[2] s) => (float[p,q,r] y)",
        "one = Constant<value_ints=[1]>() more = Add(s, one) z = Concat<axis=0>(one, more) y = Reshape(x, z)",
        fed("s", [(3, 5), (-2, 3), (1, -2)])),
    "a list that is joined before a branch needs a part of it": (
        "(float[1] x, int64[2] s) => (float[p] u, float[q,r] y)",
        "one = Constant<value_int=1>() n = Size(s) c = Greater(n, one) a, b = Split<num_outputs=2>(s) "
        "joined = Concat<axis=0>(a, b) u = If(c) <then_branch = g1 () => (float[k] v) { v = Expand(x, a) }, "
        "else_branch = g2 () => (float[k] w) { w = Expand(x, b) }> y = Expand(x, joined)",
        fed("s", [(3, 5), (1, 1), (7, 2)], [A[0, 0, :1]])),
    "slice": ("(float[a,b,c] x, int64[2] i, int64[2] j) => (float[p,q,r] y)", "y = Slice(x, i, j)", [
        {"x": A, "i": whole(*i), "j": whole(*j)} for i, j in (
            ((0, 1), (1, 3)), ((-1, -2), (100, -1)), ((5, 0), (9, 2)), ((1, 2), (0, 2)), ((-9, 0), (2**31 - 1, 2**40)))]),
    "slice along any axes": (
        "(float[a,b,c] x, int64[2] i, int64[2] j, int64[2] k, int64[2] l) => (float[p,q,r] y)", "y = Slice(x, i, j, k, l)", [
            {"x": x, "i": whole(*i), "j": whole(*j), "k": whole(*k), "l": whole(*steps)} for x in (A, B) for i, j, k, steps in (
                ((0, 1), (9, 3), (0, 2), (1, 2)), ((-1, 3), (-9, 0), (2, 0), (-1, -2)), ((0, 0), (1, 5), (-1, 1), (3, 1)))]),
    "pad": ("(float[a,b] x, int64[4] s) => (float[p,q] y)", "y = Pad(x, s)", fed("s", [
        (0, 1, 2, 3), (-1, 0, 1, -2), (0, 0, 0, 0), (-1, 2, -1, 0)], [A[0]])),
    "pad along any axis": (
        "(float[a,b] x, int64[2] s, int64[1] k) => (float[p,q] y)",
        "half = Constant<value_float=0.5>() y = Pad(x, s, half, k)",
        [{"x": A[0], "s": whole(*s), "k": whole(k)} for s in ((1, 2), (-1, 0)) for k in (0, 1, -1, -2)]),
    "expand": ("(float[a,1] x, int64[3] s) => (float[p,q,r] y)", "y = Expand(x, s)", fed("s", [
        (3, 2, 4), (1, 2, 1)], [A[0, :2, :1]])),
    "expand a constant dim": ("(float[3,1] x, int64[3] s) => (float[p,q,r] y)", "y = Expand(x, s)", fed("s", [
        (2, 1, 6), (1, 3, 1)], [A[0, :, :1]])),
    "tile": ("(float[a,b] x, int64[2] s) => (float[p,q] y)", "y = Tile(x, s)", fed("s", [(3, 4), (1, 1), (0, 2)], [A[0]])),
    "split": ("(float[a,b] x, int64[2] s) => (float[p,b] y, float[q,b] z)", "y, z = Split<axis=0>(x, s)", fed(
        "s", [(1, 2), (3, 0), (0, 3)], [A[0]])),
    "constant of a shape": ("(int64[2] s) => (float[p,q] y)", "y = ConstantOfShape(s)", [
        {"s": whole(*s)} for s in ((3, 4), (0, 1))]),
    "range": ("(int64 i, int64 j, int64 k) => (int64[p] y)", "y = Range(i, j, k)", [
        dict(zip("ijk", map(np.array, numbers))) for numbers in ((1, 8, 2), (-3, -9, -2), (4, 4, 1), (5, 1, 3), (0, 7, 7))]),
    "range of 32 bits and of floats": (
        "(int32 i, float j) => (int32[p] y, float[q] z)",
        "one = Constant<value = int32 {1}>() half = Constant<value_float=0.5>() none = Constant<value_float=0.0>() "
        "y = Range(one, i, one) z = Range(none, j, half)",
        [{"i": np.array(i, np.int32), "j": np.array(j, np.float32)} for i, j in ((5, 3), (0, -2))]),
    "resize by a list of some length": (
        "(float[1,1,a,b] x, float[n] s) => (float[1,1,p,q] y)", "y = Resize(x, , s)",
        [{"x": A[None, :1], "s": np.array((1, 1, *s), np.float32)} for s in ((2, 3), (0.5, 1.5))]),
    "tile by a list of some length": ("(float[a,b] x, int64[n] s) => (float[p,q] y)", "y = Tile(x, s)", fed(
        "s", [(3, 4), (1, 1)], [A[0]])),
    "split by a list of some length": (
        "(float[a,b] x, int64[n] s) => (float[p,b] y, float[q,b] z)", "y, z = Split<axis=0>(x, s)", fed(
            "s", [(1, 2), (3, 0)], [A[0]])),
    "pad by a list of some length": ("(float[a,b] x, int64[n] s) => (float[p,q] y)", "y = Pad(x, s)", fed(
        "s", [(0, 1, 2, 3), (-1, 0, 1, -2)], [A[0]])),
    "slice by lists of some length": (
        "(float[a,b,c] x, int64[n] i, int64[2] j, int64[m] k) => (float[p,q,r] y)", "y = Slice(x, i, j, k)",
        [{"x": A, "i": whole(*i), "j": whole(*j), "k": whole(*k)} for i, j, k in (
            ((0, 1), (1, 3), (0, 2)), ((-1, -2), (9, -1), (2, 1)))]),
    "updates say how deep an index is": (
        "(float[a,b,c] x, int64[n,k] i, float[n,d] u) => (float[a,b,c] y)", "y = ScatterND(x, i, u)",
        [{"x": A, "i": np.array(i), "u": B[:len(i), 0, :4]} for i in (((0, 2), (1, 1)), ((1, 0),))]),
    "one hot": ("(int64[n] x, float d) => (float[n,p] y)", "v = Constant<value_floats=[2.0, 5.0]>() y = OneHot(x, d, v)", [
        {"x": whole(1, -2, 7), "d": np.array(d, np.float32)} for d in (8, 3)]),
    "resize": ("(float[1,1,a,b] x, int64[4] s) => (float[1,1,p,q] y)", 'y = Resize<mode="linear">(x, , , s)', fed("s", [
        (1, 1, 5, 7), (1, 1, 2, 2)], [A[None, :1]])),
    "top of a matrix": (
        "(float[a,b] x, int64 n) => (float[p,b] y)",
        "zero = Constant<value_ints=[0]>() list = Unsqueeze(n, zero) y = Slice(x, zero, list, zero)", fed(
            "n", [1, 0, 9], [A[0]])),
    "sum along any axis": ("(float[a,b,c] x, int64[1] k) => (float[p,q,r] y)", "y = ReduceSum(x, k)", fed(
        "k", [(k,) for k in range(-3, 3)], (A, B))),
    "sum along any axis, which goes": (
        "(float[a,b,c] x, int64[1] k) => (float[p,q] y)", "y = ReduceSum<keepdims=0>(x, k)", fed(
            "k", [(k,) for k in range(-3, 3)], (A, B))),
    "sum along any two axes": ("(float[a,b,c] x, int64[2] k) => (float[p,q,r] y)", "y = ReduceSum(x, k)", fed(
        "k", [(0, 1), (2, 0), (-1, 1)], (A, B))),
    "sum along any two axes, which go": (
        "(float[a,b,c] x, int64[2] k) => (float[p] y)", "y = ReduceSum<keepdims=0>(x, k)", fed(
            "k", [(0, 1), (2, 0), (-1, 1)], (A, B))),
    "sum up along any axis": ("(float[a,b,c] x, int64 k) => (float[a,b,c] y)", "y = CumSum<exclusive=1, reverse=1>(x, k)", fed(
        "k", range(-3, 3), (A, B))),
    "squeeze": ("(float[a,b,c] x, int64[1] k) => (float[p,q] y)", "y = Squeeze(x, k)", fed("k", [(1,), (-2,)], [B])),
    "unsqueeze": ("(float[a,b] x, int64[2] k) => (float[p,q,r,s] y)", "y = Unsqueeze(x, k)", fed("k", [
        (0, 1), (3, 0), (-1, 1), (1, -2)], [A[0]])),
    "a constant in a shape": (
        "(float[a,b] x, int64[2] s) => (float[a,c] y, float[d,c] u) <float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>",
        "z = Reshape(w, s) y = MatMul(x, z) u = Relu(z)",
        [{"x": RNG.standard_normal((2, k)).astype(np.float32), "s": whole(k, -1)} for k in (1, 3, 6, 12)]),
    "a constant along any axis": (
        "(int64[1] k) => (float[a,b] y, float[a,c] z) <float[2,3] w = {1,2,3,4,5,6}>",
        "y = ReduceSum(w, k) i = Squeeze(k) z = CumSum(w, i)", [{"k": whole(k)} for k in (0, 1, -2)]),
    "halves": ("(float16[a,b,c] x, int64[3] s) => (float16[p,q,r] y)", "z = Reshape(x, s) y = Neg(z)", [
        {"x": A.astype(np.float16), "s": whole(*s)} for s in ((4, 3, 2), (2, -1, 3))]),
    "what is made of it is multiplied": (
        "(float[a,b,c] x, float[d,e] w, int64[2] s) => (float[p,e] y)", "z = Reshape(x, s) y = MatMul(z, w)",
        [{"x": A, "w": RNG.standard_normal((k, 5)).astype(np.float32), "s": whole(*s)}
         for k, s in ((4, (-1, 4)), (8, (3, -1)))]),
}


#: What is told is bound in one place for all targets: by default a GPU has two of them.
TARGETS = [pytest.param(name, target, marks=pytest.mark.slow if target != "cpu" and number > 1 else ())
           for target in ("cpu", "emu:sm_80") for number, name in enumerate(CASES)]


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_values(name: str, target: str) -> None:
    signature, body, given = CASES[name]
    one = model(signature, body)
    executable = tsc.compile(one, target=target)
    session = onnxruntime.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"])
    for feeds in given:
        for got, want in zip(executable.run(None, feeds), session.run(None, feeds), strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape), feeds
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str(feeds))


REFUSED = {
    "another number of elements": ("reshape", {"s": whole(5, 3, 2)}, ShapeError, "the number of elements must not change"),
    "two of -1": ("reshape", {"s": whole(-1, -1, 2)}, ShapeError, "at most one dim may be -1"),
    "a dim of -2": ("reshape", {"s": whole(-2, 3, 2)}, ShapeError, "no dim may be below -1"),
    "a dim of nobody to copy": ("reshape to a longer list", {"s": whole(2, 3, 4, 0, 1)}, ShapeError, "its input lacks"),
    "nothing to infer a dim from": (
        "reshape where 0 is 0", {"x": np.zeros((0, 3), np.float32), "s": whole(0, -1, 1)}, ShapeError, "beside a dim of 0"),
    "beyond any size": ("reshape", {"s": whole(2**60, 3, 2)}, ShapeError, "'s' holds 1152921504606846976 at place 0"),
    "as many numbers as before": ("reshape", {"s": whole(4, 6)}, ShapeError, r"'s' has shape \(2,\), expected \[3\]"),
    "as many numbers as the rank is": (
        "tile by a list of some length", {"x": A[0], "s": whole(4, 6, 1)}, ShapeError, r"'s' has shape \(3,\), expected \[2\]"),
    "a negative size": ("constant of a shape", {"s": whole(3, -4)}, ShapeError, "none of its dims may be negative"),
    "parts of more": ("split", {"x": A[0], "s": whole(2, 2)}, ShapeError, "holds 2 at place"),
    "a part below 0": ("split", {"x": A[0], "s": whole(4, -1)}, ShapeError, "holds -1 at place 1"),
    "what expands to neither": (
        "expand a constant dim", {"x": A[0, :, :1], "s": whole(2, 2, 6)}, ShapeError, "is expanded to 3"),
    "an axis too far": ("sum along any axis", {"k": whole(3)}, ShapeError, "an axis is at most 2"),
    "an axis twice": ("sum along any two axes", {"k": whole(1, -2)}, ShapeError, "axis 1 must not stand twice"),
    "a dim that is not 1": ("squeeze", {"k": whole(0)}, ShapeError, "a squeezed dim must be 1"),
    "a step of 0": ("range", {"i": np.array(1), "j": np.array(5), "k": np.array(0)}, ShapeError, "step must not be 0"),
    "a half": ("one hot", {"x": whole(1), "d": np.array(2.5, np.float32)}, InputError, "'d' holds 2.5, expected whole numbers"),
    "no number": ("one hot", {"x": whole(1), "d": np.array(np.nan, np.float32)}, InputError, "'d' holds nan, expected whole"),
    "an infinity": ("one hot", {"x": whole(1), "d": np.array(np.inf, np.float32)}, InputError, "'d' holds an infinity"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be(name: str) -> None:
    """Refused before anything runs; a right request is answered afterwards."""
    case, feeds, error, text = REFUSED[name]
    signature, body, given = CASES[case]
    executable = tsc.compile(model(signature, body))
    with pytest.raises(error, match=text):
        executable.run(None, {**({} if "x" in feeds else {k: v for k, v in given[0].items() if k == "x"}), **feeds})
    executable.run(None, given[0])


def test_they_are_remembered_as_shapes_are() -> None:
    signature, body, given = CASES["reshape"]
    executable = tsc.compile(model(signature, body))
    for feeds in (given[0], given[1], given[0]):
        executable.run(None, feeds)
    assert (executable.stats["shapes"], executable.stats["memo_hits"]) == (2, 1)
    peaks = {executable.peak_bytes(a=2, b=3, c=4, s_0=s, s_1=3, s_2=2) for s in (4, -1)}
    assert len(peaks) == 1
    assert "s_0 in -1.." in executable.explain() and "s: int64[3] = [s_0, s_1, s_2]" in executable.explain()


def test_they_are_kept_in_a_package(tmp_path: Path) -> None:
    signature, body, given = CASES["slice along any axes"]
    made = tsc.compile(model(signature, body))
    made.save(tmp_path / "m.tscpack")
    loaded = tsc.load(tmp_path / "m.tscpack")
    for feeds in given:
        strided = {k: np.repeat(v, 2, axis=-1)[..., ::2] for k, v in feeds.items()}
        np.testing.assert_array_equal(loaded.run(None, strided)[0], made.run(None, feeds)[0])


def test_data_are_no_sizes() -> None:
    """A list without a fixed length, or what a kernel computes from floats."""
    with pytest.raises(UnsupportedError, match="only the run knows 's'"):
        tsc.compile(model("(float[a,b] x, int64[n] s) => (float[p,q] y)", "y = Reshape(x, s)"))
    with pytest.raises(UnsupportedError, match="only the run knows 'z'"):
        tsc.compile(model("(float[a,b] x, float[2] s) => (float[p,q] y)", "t = Exp(s) z = Cast<to=7>(t) y = Reshape(x, z)"))
