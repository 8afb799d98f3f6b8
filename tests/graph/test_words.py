"""Convolutions of bytes: words of several channels, of which one instruction multiplies all. No bit differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tsc
from tests.graph.test_apart import Array, ends_often, model
from tests.machine import runnable
from tests.runtime.plans import plan_of
from tsc.codegen_c.specs import CPU_SPECS
from tsc.loop_ir.marks import QUAD_TILE
from tsc.ops.words import word_of, words_of
from tsc.te.intrinsics import MEANING

TARGETS = [spec.name for spec in runnable()]


def convolved(x: Array, w: Array, strides: Sequence[int] = (1, 1), pads: Sequence[int] = (0, 0, 0, 0),
              dilations: Sequence[int] = (1, 1), group: int = 1) -> Array:
    """In int64, tap by tap."""
    x = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    w = w.astype(np.int64)
    out, each, *kernel = w.shape
    high, wide = ((d - (k - 1) * r - 1) // s + 1 for d, k, r, s in zip(x.shape[2:], kernel, dilations, strides))
    total = np.zeros((len(x), out, high, wide), np.int64)
    for g in range(group):
        rows = slice(g * (out // group), (g + 1) * (out // group))
        for i in range(kernel[0]):
            for j in range(kernel[1]):
                part = x[:, g * each:(g + 1) * each, i * dilations[0]:, j * dilations[1]:]
                part = part[:, :, ::strides[0], ::strides[1]][:, :, :high, :wide]
                total[:, rows] += np.einsum("nchw,mc->nmhw", part, w[rows, :, i, j])
    return total


def convolution(kind: str, channels: int, w: Array, zero: str, attrs: Mapping[str, Any], shift: int = 0) -> onnx.ModelProto:
    """A ConvInteger whose zero point is held, fed, or missing."""
    inputs: dict[str, tuple[str, tuple[int | str, ...]]] = {"x": (kind, ("n", channels, "h", "v"))}
    held: dict[str, Array] = {"w": w, "wz": np.array(shift, w.dtype)}
    if zero == "held":
        held["z"] = np.array(np.iinfo(kind).max - 2, kind)
    elif zero == "fed":
        inputs["z"] = (kind, ())
    node = helper.make_node("ConvInteger", ["x", "w", "" if zero == "none" else "z", "wz"], ["y"], **attrs)
    return model([node], inputs, held, {"y": "int32"})


def check(made: tsc.Executable, kind: str, channels: int, w: Array, zero: str, attrs: Mapping[str, Any],
          shapes: Sequence[tuple[int, int, int]], shift: int = 0) -> None:
    for n, h, v in shapes:
        x = ends_often(kind, n, channels, h, v)
        fed = ends_often(kind, 1)[0]
        less = {"none": 0, "held": np.iinfo(kind).max - 2, "fed": int(fed)}[zero]
        found, = made.run(None, {"x": x} | ({"z": np.asarray(fed)} if zero == "fed" else {}))
        expected = convolved(x.astype(np.int64) - less, w.astype(np.int64) - shift, **attrs)
        np.testing.assert_array_equal(found, expected.astype(np.int32))


def source_of(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.glob("*.c"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("zero", ["none", "held", "fed"])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_zero_points(target: str, zero: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of an image is its zero point, which is no zero; a fed one is found by the run."""
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    w, attrs = ends_often("int8", 7, 8, 3, 3), {"pads": (1, 1, 1, 1)}
    made = tsc.compile(convolution(kind, 8, w, zero, attrs), target=target)
    source, quads = source_of(tmp_path), QUAD_TILE in CPU_SPECS[target].intrinsics
    assert "tsc_quad_int32x" in source if quads else "tsc_pair_int32x" in source
    assert ("= tsc_dot_bytes_int32x" in source) == quads and ("= tsc_dot_int32x" in source) != quads
    assert "int16" not in source or not quads
    check(made, kind, 8, w, zero, attrs, ((1, 5, 7), (2, 9, 64), (1, 1, 1), (1, 8, 8), (3, 11, 13)))


@pytest.mark.parametrize(("channels", "out", "group"), [
    (2, 3, 1), (3, 5, 1), (4, 6, 1), (5, 7, 1), (13, 8, 1), (6, 4, 2), (10, 6, 2), (24, 9, 3), (16, 16, 4), (8, 16, 4)])
@pytest.mark.parametrize(("kernel", "attrs"), [
    ((1, 1), {}), ((3, 2), {"pads": (1, 0, 2, 1), "strides": (2, 1)}), ((7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
    ((2, 3), {"dilations": (3, 2), "pads": (2, 2, 2, 2)})])
def test_channels_and_windows(channels: int, out: int, group: int, kernel: tuple[int, int], attrs: dict[str, Any]) -> None:
    """What is no whole word is filled up with weights of 0; groups share no word."""
    attrs = attrs | {"group": group}
    w = ends_often("int8", out, channels // group, *kernel)
    made = tsc.compile(convolution("uint8", channels, w, "held", attrs))
    check(made, "uint8", channels, w, "held", attrs, ((1, 7, 7), (2, 13, 17), (1, 8, 65)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kind", "shift"), [("uint8", 128), ("uint8", 17), ("int8", 5)])
def test_weights(target: str, kind: str, shift: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are no bytes with a sign, less their zero point, are multiplied in pairs."""
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    w, attrs = ends_often(kind, 9, 6, 3, 3), {"pads": (1, 1, 1, 1)}
    made = tsc.compile(convolution("uint8", 6, w, "held", attrs, shift), target=target)
    quads = shift == 128 and QUAD_TILE in CPU_SPECS[target].intrinsics
    assert ("= tsc_dot_bytes_int32x" in source_of(tmp_path)) == quads
    check(made, "uint8", 6, w, "held", attrs, ((1, 6, 7), (2, 9, 33)), shift)


@pytest.mark.parametrize("bits", [1, 3])
def test_other_ranks(bits: int) -> None:
    """Along one axis and along three."""
    w, kind = ends_often("int8", 5, 6, *(3,) * bits), "int8"
    names = tuple("hvd"[:bits])
    node = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"], pads=(1,) * 2 * bits)
    made = tsc.compile(model([node], {"x": (kind, ("n", 6, *names))}, {"w": w, "z": np.array(-100, kind)}, {"y": "int32"}))
    for extents in ((1,) * bits, (4, 9, 5)[:bits], (17, 3, 2)[:bits]):
        x = ends_often(kind, 2, 6, *extents)
        whole = (1,) * (2 - bits) if bits < 2 else ()
        if bits == 1:
            expected = convolved((x.astype(np.int64) + 100).reshape(2, 6, *whole, -1), w.reshape(5, 6, 1, 3), pads=(0, 1, 0, 1))
        else:
            padded = np.pad(x.astype(np.int64) + 100, ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0)))
            expected = sum((convolved(padded[:, :, i:i + extents[0]].transpose(0, 2, 1, 3, 4).reshape(-1, 6, *extents[1:]),
                                      w[:, :, i], pads=(1, 1, 1, 1)) for i in range(3)), np.int64(0))
            expected = expected.reshape(2, extents[0], 5, *extents[1:]).transpose(0, 2, 1, 3, 4)
        np.testing.assert_array_equal(made.run(None, {"x": x})[0].ravel(), expected.astype(np.int32).ravel())


@pytest.mark.parametrize("target", TARGETS)
def test_sums_wrap_around(target: str) -> None:
    """What is summed up apart leaves int32 on its own, and so does the sum."""
    w = np.full((2, 70000, 1, 1), -128, np.int8)
    made = tsc.compile(convolution("uint8", 70000, w, "held", {}), target=target)
    for value in (0, 253, 255):
        x = np.full((1, 70000, 1, 2), value, np.uint8)
        expected = convolved(x.astype(np.int64) - 253, w)
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], expected.astype(np.int32))


def test_images_are_made_words_of_once() -> None:
    """Two convolutions of one image share its words; the bytes are a result as well."""
    held: dict[str, Array] = {f"w{k}": ends_often("int8", 5, 12, 3, 3) for k in range(2)} | {"z": np.array(7, np.uint8)}
    nodes = [helper.make_node("Max", ["x", "z"], ["q"]),
             *(helper.make_node("ConvInteger", ["q", f"w{k}", "z"], [f"y{k}"], pads=(1 + k,) * 4) for k in range(2))]
    made = tsc.compile(model(nodes, {"x": ("uint8", (1, 12, "h", "v"))}, held, {"y0": "int32", "y1": "int32", "q": "uint8"}))
    assert len(plan_of(made._package).launches) == 4  # the bytes, their words, and two products
    x = ends_often("uint8", 1, 12, 9, 20)
    first, second, q = made.run(None, {"x": x})
    np.testing.assert_array_equal(q, np.maximum(x, 7))
    for found, k in ((first, 0), (second, 1)):
        np.testing.assert_array_equal(found, convolved(q.astype(np.int64) - 7, held[f"w{k}"], pads=(1 + k,) * 4))


@pytest.mark.parametrize("target", [TARGETS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in TARGETS[1:])])
@pytest.mark.parametrize("kernel", [1, 3])
def test_results_that_are_stored_channels_last(kernel: int, target: str) -> None:
    """Vectors of columns are the kernels then, which are constant and lie in panels."""
    w = ends_often("int8", 37, 16, kernel, kernel)
    nodes = [helper.make_node("ConvInteger", ["x", "w", "z"], ["c"], pads=(kernel // 2,) * 4),
             helper.make_node("Transpose", ["c"], ["y"], perm=(0, 2, 3, 1))]
    held: dict[str, Array] = {"w": w, "z": np.array(9, np.uint8)}
    made = tsc.compile(model(nodes, {"x": ("uint8", ("n", 16, "h", "v"))}, held, {"y": "int32"}), target=target)
    for n, h, v in ((1, 1, 1), (2, 7, 5), (1, 16, 19)):
        x = ends_often("uint8", n, 16, h, v)
        expected = convolved(x.astype(np.int64) - 9, w, pads=(kernel // 2,) * 4).transpose(0, 2, 3, 1)
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("out", "kernel", "attrs", "launches"), [
    (9, 1, {}, 1), (9, 1, {"strides": (2, 2)}, 1), (9, 3, {"pads": (1, 1, 1, 1)}, 2), (1, 1, {}, 2), (6, 1, {"group": 3}, 2)])
def test_words_are_made_where_they_are_copied_once(out: int, kernel: int, attrs: dict[str, Any], launches: int,
                                                   target: str) -> None:
    """Where a product copies each for several kernels; windows would make them again for each of their places."""
    w = ends_often("int8", out, 12 // attrs.get("group", 1), kernel, kernel)
    made = tsc.compile(convolution("uint8", 12, w, "none", attrs), target=target)
    assert len(plan_of(made._package).launches) == launches
    check(made, "uint8", 12, w, "none", attrs, ((1, 3, 7), (2, 13, 17), (1, 1, 1)))


@pytest.mark.parametrize("target", TARGETS)
def test_pairs_of_quantisations(target: str) -> None:
    """Floats between two quantisations: a convolution of whole numbers with scales of each kernel, and a chain of two."""
    held: dict[str, Array] = {"s": np.float32(0.05), "z": np.array(120, np.uint8), "wz": np.zeros(6, np.int8),
                              "ws": np.linspace(0.01, 0.1, 6, dtype=np.float32), "w": ends_often("int8", 6, 6, 3, 3)}
    nodes = [helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["b"], axis=0)]
    source = "x"
    for k in range(2):
        nodes += [helper.make_node("QuantizeLinear", [source, "s", "z"], [f"q{k}"]),
                  helper.make_node("DequantizeLinear", [f"q{k}", "s", "z"], [f"a{k}"]),
                  helper.make_node("Conv", [f"a{k}", "b"], [f"y{k}"], pads=(1, 1, 1, 1))]
        source = f"y{k}"
    made = tsc.compile(model(nodes, {"x": ("float", ("n", 6, "h", "v"))}, held, {"y0": "float", "y1": "float", "q1": "uint8"}),
                       target=target)
    scale = held["ws"].astype(np.float64).reshape(-1, 1, 1) * np.float64(np.float32(0.05))
    for n, h, v in ((1, 1, 1), (1, 7, 9), (2, 16, 23)):
        x = np.random.default_rng(h).standard_normal((n, 6, h, v)).astype(np.float32) * 3
        first, second, q = made.run(None, {"x": x})
        for given, found in ((np.clip(np.rint(x / np.float32(0.05)) + 120, 0, 255), first), (q.astype(np.float64), second)):
            expected = convolved(given - 120, held["w"], pads=(1, 1, 1, 1)) * scale
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


def test_what_words_are() -> None:
    rng = np.random.default_rng(0)
    for parts, kinds in ((2, ("int16", "int16")), (4, ("uint8", "int8"))):
        a, b = (rng.integers(np.iinfo(k).min, np.iinfo(k).max + 1, (50, parts)).astype(k) for k in kinds)
        a[:4], b[:4] = np.iinfo(kinds[0]).max, np.iinfo(kinds[1]).min
        join, dot = {2: ("pair", "dot_pair"), 4: ("quad", "dot_quad")}[parts]
        words = [MEANING[join](*x.astype(np.int32).T) for x in (a, b)]
        for x, found in zip((a, b), words):
            np.testing.assert_array_equal(found, words_of(x, parts)[:, 0])
        np.testing.assert_array_equal(MEANING[dot](*words), (a.astype(np.int64) * b).sum(1).astype(np.int32))
    assert word_of(-1, 4) == -1 and word_of(1, 4) == 0x01010101 and word_of(200, 4) == -0x37373738
    np.testing.assert_array_equal(words_of(np.array([[1, 2, 3, 4, 5]], np.int8), 4), [[0x04030201, 5]])
