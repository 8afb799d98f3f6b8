"""Wrong requests to a right model. After each refusal the Executable still answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import tsc
from tests.graph.models import model

Refused = Callable[..., AbstractContextManager[None]]


@pytest.fixture(scope="module")
def executable(lookup_model: onnx.ModelProto) -> Any:
    return tsc.compile(lookup_model, dims={"batch": (1, 8), "seq": (2, 50)})


def feeds(batch: int = 2, seq: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"ids": rng.integers(0, 10, (batch, seq)), "shift": rng.standard_normal((batch, seq, 4)).astype(np.float32)}


@pytest.fixture(autouse=True)
def still_answers(executable: Any, lookup_model: onnx.ModelProto) -> Any:
    yield
    good = feeds()
    table, w = (numpy_helper.to_array(t) for t in lookup_model.graph.initializer)
    np.testing.assert_allclose(executable.run(None, good)[0], np.maximum(table[good["ids"]] @ w + good["shift"], 0), atol=1e-5)


def test_missing_input(executable: Any, refused: Refused) -> None:
    with refused(tsc.InputError, "shift"):
        executable.run(None, {"ids": feeds()["ids"]})


def test_unknown_input(executable: Any, refused: Refused) -> None:
    with refused(tsc.InputError, "colour"):
        executable.run(None, feeds() | {"colour": np.zeros(3, np.float32)})


def test_unknown_output(executable: Any, refused: Refused) -> None:
    with refused(tsc.InputError, "logits"):
        executable.run(["logits"], feeds())


@pytest.mark.parametrize("dtype", [np.int32, np.float32, np.bool_])
def test_wrong_dtype(executable: Any, refused: Refused, dtype: Any) -> None:
    with refused(tsc.InputError, "ids", "int64", np.dtype(dtype).name):
        executable.run(None, feeds() | {"ids": feeds()["ids"].astype(dtype)})


def test_wrong_rank(executable: Any, refused: Refused) -> None:
    with refused(tsc.ShapeError, "ids"):
        executable.run(None, feeds() | {"ids": feeds()["ids"][0]})


def test_wrong_fixed_size(executable: Any, refused: Refused) -> None:
    with refused(tsc.ShapeError, "shift", "4", "5"):
        executable.run(None, feeds() | {"shift": np.zeros((2, 3, 5), np.float32)})


@pytest.mark.parametrize("batch, seq, culprit", [(9, 3, "batch"), (1, 51, "seq"), (1, 1, "seq"), (0, 3, "batch")])
def test_out_of_range(executable: Any, refused: Refused, batch: int, seq: int, culprit: str) -> None:
    with refused(tsc.ShapeError, culprit):
        executable.run(None, feeds(batch, seq))


@pytest.mark.parametrize("batch, seq", [(1, 2), (8, 50), (8, 2), (1, 50)])
def test_range_ends_are_fine(executable: Any, batch: int, seq: int) -> None:
    assert executable.run(None, feeds(batch, seq))[0].shape == (batch, seq, 4)


def test_contradictory_sizes(executable: Any, refused: Refused) -> None:
    with refused(tsc.ShapeError, "seq", "3", "4"):
        executable.run(None, feeds() | {"shift": np.zeros((2, 4, 4), np.float32)})


@pytest.mark.parametrize("index", [10, -11, 2**40, -(2**63)])
def test_index_outside_the_vocabulary(executable: Any, refused: Refused, index: int) -> None:
    bad = feeds(3, 7)
    bad["ids"][1, 4] = index
    with refused(tsc.InputError, "lookup"):
        executable.run(None, bad)


def test_negative_indices_count_from_the_end(executable: Any) -> None:
    some = feeds()
    np.testing.assert_array_equal(executable.run(None, some)[0], executable.run(None, some | {"ids": some["ids"] - 10})[0])


@pytest.mark.parametrize("body", [
    "y = Gather<axis = 0>(x, i)", "s = Softsign(x)\n g = Gather<axis = 0>(s, i)\n y = Add(g, g)",
    "j = Unsqueeze(i, last)\n y = GatherND(x, j)", "e = Expand(x, five)\n y = Gather<axis = 0>(e, i)",
    "f = ConstantOfShape(five)\n g = Gather<axis = 0>(f, i)\n y = Mul(g, x)",
    "t = Tile(x, five)\n r = Transpose<perm = [1, 0, 2]>(t)\n y = Gather<axis = 1>(r, i)"])
def test_an_index_outside_where_all_that_is_read_is_the_same(body: str, refused: Refused) -> None:
    """Dims of extent 1 and repeated elements, whose value does not depend on the index."""
    constants = "int64[3] five = {5, 1, 1}, int64[1] last = {1}"
    proto = model(body, "float[1, 1, b] x, int64[d] i", "float[d, p, q] y", constants)
    executable, x = tsc.compile(proto), np.array([[[0.5, -3]]], np.float32)
    for wrong in (5, -6, 2**40):
        with refused(tsc.InputError, "'i' holds an index that is out of bounds"):
            executable.run(None, {"x": x, "i": np.array([0, wrong, -1])})
    right = {"x": x, "i": np.array([0, -1, 0])}
    np.testing.assert_array_equal(executable.run(None, right)[0], ReferenceEvaluator(proto).run(None, right)[0])


def test_more_than_memory_holds(refused: Refused) -> None:
    """Of two nodes the one that makes most is named, so that whoever made the model knows what to change."""
    proto = model("[less] a = Neg(x)\n [wide] y = Pad(a, pads)", "float[N] x", "float[M] y",
                  "int64[2] pads = {0, 1000000000000}")
    made = tsc.compile(proto, options=tsc.Options(limits=tsc.Limits(elements=2**60)))
    with refused(tsc.LaunchError, "N=3", "node 'wide'", "4000000000012 bytes"):
        made.run(None, {"x": np.ones(3, np.float32)})
