"""Places beyond 2**31 elements: reads and positions that would be elsewhere if an index had 32 bits.

Most pages of the large input are never written, so that it takes addresses, not memory.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node, make_tensor_value_info

import tsc

ROWS, COLUMNS = 70_001, 40_009
WRITTEN = (0, 1, ROWS // 2, ROWS - 2, ROWS - 1)
#: Rows before and behind the element 2**31, and flat places around it.
PICKED = np.array([0, ROWS // 2, ROWS - 2, ROWS - 1, -1, -ROWS // 2])
PLACES = np.array([0, 7, 2**31 - 1, 2**31, 2**31 + 1, ROWS * COLUMNS - 1, -1])


@pytest.fixture(scope="module")
def far() -> np.ndarray:
    try:
        x = np.zeros((ROWS, COLUMNS), np.uint8)
    except MemoryError:
        pytest.skip("no 2.8 GB of addresses here")
    for row in WRITTEN:
        x[row] = np.random.default_rng(row).integers(1, 200, COLUMNS)
    flat = x.reshape(-1)
    flat[PLACES] = np.arange(1, len(PLACES) + 1)
    return x


def whole(name: str, *values: int) -> object:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def sliced(first: tuple[int, int], last: int, steps: tuple[int, int]) -> list[object]:
    return [whole("first", *first), whole("last", last, last), whole("axes", 0, 1), whole("steps", *steps)]


SLICED = [make_node("Slice", ["x", "first", "last", "axes", "steps"], ["y"])]
SUMMED = [make_node("Cast", ["x"], ["c"], to=TensorProto.INT64), make_node("ReduceSum", ["c", "axis"], ["y"], keepdims=0)]
FLAT = [make_node("Reshape", ["x", "flat"], ["f"])]
U8, I64 = TensorProto.UINT8, TensorProto.INT64
CASES = {
    "slice": (SLICED, (U8, ["p", "q"]), sliced((0, 3), 2**40, (1000, 511)), lambda x: x[::1000, 3::511]),
    "slice backwards": (SLICED, (U8, ["p", "q"]), sliced((-1, -1), -(2**40), (-1000, -511)), lambda x: x[::-1000, ::-511]),
    "gather rows": ([make_node("Gather", ["x", "i"], ["y"])], (U8, ["p", "m"]), [whole("i", *PICKED)], lambda x: x[PICKED]),
    "gather places": ([*FLAT, make_node("Gather", ["f", "i"], ["y"])], (U8, ["p"]), [whole("flat", -1), whole("i", *PLACES)],
                      lambda x: x.reshape(-1)[PLACES]),
    "rows of the transposed": ([make_node("Transpose", ["x"], ["t"], perm=[1, 0]), make_node("Gather", ["t", "i"], ["y"])],
                               (U8, ["p", "n"]), [whole("i", 0, COLUMNS - 1, 7)], lambda x: x[:, [0, COLUMNS - 1, 7]].T),
    "sums of rows": (SUMMED, (I64, ["n"]), [whole("axis", 1)], lambda x: x.sum(1, dtype=np.int64)),
    "sums of columns": (SUMMED, (I64, ["m"]), [whole("axis", 0)], lambda x: x.sum(0, dtype=np.int64)),
}


def run(nodes: list[object], output: tuple[int, list[object]], constants: list[object], x: np.ndarray) -> np.ndarray:
    graph = helper.make_graph(nodes, "far", [make_tensor_value_info("x", U8, ["n", "m"])],
                              [make_tensor_value_info("y", *output)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return tsc.compile(model, threads=2).run(None, {"x": x})[0]


@pytest.mark.parametrize("name", CASES)
def test_far_elements(name: str, far: np.ndarray) -> None:
    nodes, output, constants, expected = CASES[name]
    np.testing.assert_array_equal(run(nodes, output, constants, far), expected(far))


def test_the_largest_is_found_far_away(far: np.ndarray) -> None:
    """A position that needs more than 32 bits."""
    far[ROWS - 2, 5] = 255
    assert run([*FLAT, make_node("ArgMax", ["f"], ["y"], axis=0, keepdims=0)], (I64, []), [whole("flat", -1)], far) == (
        (ROWS - 2) * COLUMNS + 5)
