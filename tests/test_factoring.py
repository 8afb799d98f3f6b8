"""Reductions cut by option or by the user: whole models against float64, how many calls they take, what is refused and why."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tsc
from tests.runtime.plans import plan_of
from tsc.errors import InputError, ShapeError
from tsc.runtime.load import load
from tsc.te.factored.factoring import Factoring, from_json, to_json

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((96, 33)).astype(np.float32)
Arrays = Mapping[str, np.ndarray[Any, Any]]


def model(nodes: list[tuple[str, str, str]], *inputs: tuple[str, list[int | str]], **attributes: Any) -> ModelProto:
    """Nodes (operator, inputs, output) of float32; the last output is the model's, `w` is WEIGHT; attributes of the first."""
    made = [helper.make_node(op, args.split(), [out], **(attributes if k == 0 else {}))
            for k, (op, args, out) in enumerate(nodes)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    out = helper.make_tensor_value_info(nodes[-1][2], TensorProto.FLOAT, None)
    graph = helper.make_graph(made, "g", values, [out], [numpy_helper.from_array(WEIGHT, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


#: Models with what float64 NumPy says of x (and z), and whether chunks in one launch are taken, too.
MODELS: dict[str, tuple[ModelProto, Callable[..., Any], bool]] = {
    "softmax": (model([("Softmax", "x", "y")], ("x", ["a", "b"])), softmax, True),
    "sum of all": (model([("ReduceSum", "x", "y")], ("x", ["a", "b"]), keepdims=0), np.sum, True),
    "columns": (model([("ReduceMax", "x", "y")], ("x", ["a", "b"]), keepdims=0, axes=[0]), lambda x: x.max(0), True),
    "product": (model([("MatMul", "x z", "t"), ("Relu", "t", "y")], ("x", ["a", "b"]), ("z", ["b", "c"])),
                lambda x, z: np.maximum(x @ z, 0), False),
    "weights": (model([("MatMul", "x w", "t"), ("Tanh", "t", "y")], ("x", ["a", 96])),
                lambda x: np.tanh(x @ WEIGHT.astype(np.float64)), False),
}
SIZES = [(1, 1, 1), (3, 33, 17), (5, 16, 1), (17, 129, 40), (33, 7, 65)]


def feeds(name: str, a: int, b: int, c: int) -> dict[str, np.ndarray[Any, Any]]:
    b = 96 if name == "weights" else b
    x = RNG.standard_normal((a, b)).astype(np.float32)
    return {"x": x, "z": RNG.standard_normal((b, c)).astype(np.float32)} if name == "product" else {"x": x}


def check(executable: tsc.Executable, name: str) -> None:
    for sizes in SIZES:
        given = feeds(name, *sizes)
        got, = executable.run(None, given)
        expected = MODELS[name][1](*(v.astype(np.float64) for v in given.values()))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all: a product in chunks takes gcc long."""
    return tmp_path_factory.mktemp("cache")


#: What is run by default beside chunks of 16.
FEW = {("softmax", 1, True), ("weights", 1, True), ("softmax", 32, False), ("sum of all", 32, True)}


@pytest.mark.parametrize(("name", "chunk", "apart"), [
    pytest.param(name, chunk, apart, marks=() if chunk == 16 or (name, chunk, apart) in FEW else pytest.mark.slow)
    for name in MODELS for chunk in (1, 16, 32) for apart in (False, True)])
def test_models(name: str, chunk: int, apart: bool, cache: Path, tmp_path: Path) -> None:
    made, _, in_one = MODELS[name]
    options = tsc.Options(cache_dir=cache, reduction_chunk=chunk, split_reductions=apart)
    executable = tsc.compile(made, options=options)
    check(executable, name)
    (launch,) = plan_of(executable._package).launches
    (variant,) = launch.variants
    assert len(variant.calls) == 1 + apart and bool(launch.temporaries) == apart
    assert ("no reduction is cut" in executable.explain()) == (not apart and not in_one)
    executable.save(tmp_path / "p")
    check(load(tmp_path / "p", 3), name)
    check(tsc.compile(made, options=options), name)  # from the cache


def test_more_blocks_share_a_row(cache: Path) -> None:
    """What splitting is for: a sum of all, or a product of one tile, is more than one block."""
    for name, sizes in (("sum of all", {"a": 3, "b": 4000}), ("product", {"a": 3, "b": 4000, "c": 16})):
        blocks = []
        for apart in (False, True):
            options = tsc.Options(cache_dir=cache, reduction_chunk=64 if apart else 0, split_reductions=apart)
            (launch,) = plan_of(tsc.compile(MODELS[name][0], options=options)._package).launches
            blocks.append(launch.calls[0].blocks.evaluate(sizes))
        assert blocks[0] == 1 < 10 < blocks[1], name


def test_a_short_reduction_stays_whole(cache: Path) -> None:
    options = tsc.Options(cache_dir=cache, reduction_chunk=96, split_reductions=True)
    (launch,) = plan_of(tsc.compile(MODELS["weights"][0], options=options)._package).launches
    assert len(launch.calls) == 1


def test_rows_of_a_tile_share_the_branch_at_a_chunks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one for each row and step gcc took ten seconds over the kernel."""
    monkeypatch.setenv("TSC_DUMP", str(tmp_path))
    tsc.compile(MODELS["product"][0], dims={"a": (1, 8)}, options=tsc.Options(reduction_chunk=16, split_reductions=True))
    source = "".join(path.read_text() for path in tmp_path.glob("*.c"))
    lefts = [line for line in source.splitlines() if re.search(r" tsc_a\d+ = ", line)]
    assert lefts and not any(" ? " in line for line in lefts)


def test_what_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A factoring is dumped for each kernel, and one given in its place is taken."""
    options, dumped = tsc.Options(use_cache=False), tmp_path / "dumped"
    monkeypatch.setenv("TSC_DUMP", str(dumped))
    executable = tsc.compile(MODELS["softmax"][0], options=options)
    (path,) = dumped.glob("*.factoring")
    assert json.loads(path.read_text()) is None
    (te,) = dumped.glob("*.te")
    first = next(line for line in te.read_text().splitlines() if " over " in line)
    monkeypatch.setenv("TSC_OVERRIDE", str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    mine = tmp_path / "mine" / path.name
    for given, words in ((b"{}", "is no factoring"), (b"nothing", "is none"),
                         (to_json(Factoring(("nobody",), 4)).encode(), "nobody is no reduction of the program")):
        mine.write_bytes(given)
        with pytest.raises(InputError, match=words):
            tsc.compile(MODELS["softmax"][0], options=options)
    mine.write_text(to_json(Factoring((first.split("[")[0],), 7, True)))
    executable = tsc.compile(MODELS["softmax"][0], options=options)
    check(executable, "softmax")
    assert len(plan_of(executable._package).launches[0].calls) == 2


def test_requests_are_held_to_the_same_shapes(cache: Path) -> None:
    options = tsc.Options(cache_dir=cache, reduction_chunk=16, split_reductions=True)
    executable = tsc.compile(MODELS["product"][0], options=options)
    with pytest.raises(ShapeError, match="expected b = 5"):
        executable.run(None, {"x": np.zeros((2, 5), np.float32), "z": np.zeros((6, 3), np.float32)})
    peaks = [made.peak_bytes(a=64, b=640, c=64) for made in (tsc.compile(MODELS["product"][0]), executable)]
    assert isinstance(peaks[0], int) and isinstance(peaks[1], int) and peaks[0] < peaks[1]


@pytest.mark.parametrize("wrong", [{"reduction_chunk": -1}, {"split_reductions": True}, {"reduction_chunk": "8"},
                                   {"reduction_chunk": 8, "split_reductions": 1}])
def test_options_that_are_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="Options: "):
        tsc.Options(**wrong)


def test_json() -> None:
    for factoring in (None, Factoring(("a", "b"), 16), Factoring(("acc",), 1, True)):
        assert from_json(to_json(factoring)) == factoring
    for text in ("3", "[]", '{"reductions": [], "chunk": 4, "apart": true}', '{"reductions": ["a"], "chunk": 4, "apart": 1}',
                 '{"reductions": ["a"], "chunk": 4, "apart": false, "x": 1}',
                 '{"reductions": [1], "chunk": 4, "apart": false}'):
        with pytest.raises(ValueError, match="no factoring"):
            from_json(text)
