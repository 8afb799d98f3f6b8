"""Integers wrap around: chains of arithmetic with constants of all sizes, as hashes of ids have them, beside NumPy.

Indices are whole numbers and simplified as such; data of the same type are not (x + 1 is not always above x).
"""

from __future__ import annotations

from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc

Steps = list[tuple[str, np.ndarray, bool]]
TYPES = ("int64", "int32", "uint64", "int8", "uint16")
_BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Mod": np.mod, "Max": np.maximum, "Min": np.minimum}
_ORDER = {"Less": np.less, "Greater": np.greater, "Equal": np.equal}


def numbers(rng: Random, dtype: str, count: int) -> np.ndarray:
    """Numbers of all lengths, the ends of the type among them."""
    ends = np.iinfo(dtype)
    chosen = [ends.min, ends.max, ends.max // 2 + 1, 0, 1, 7, *(rng.randrange(ends.min, ends.max + 1) for _ in range(count)),
              *(rng.randrange(1, 1 << rng.randrange(1, ends.bits)) for _ in range(count))]
    return np.array([x for x in chosen if ends.min <= x <= ends.max], dtype)


def chain(rng: Random, dtype: str, number: int) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto], Steps]:
    """Nodes from x to `y<number>`, their constants, and the steps: an operator, its constant, and whether that comes first."""
    nodes, constants, steps, value = [], [], [], "x"
    for k in range(rng.randrange(1, 6)):
        op = rng.choice([*_BINARY, "Mul", "Add", "Mod"])
        constant = numbers(rng, dtype, 4)[rng.randrange(6):][:1]
        first = op in ("Sub",) and rng.random() < 0.5
        if op == "Mod" and constant[0] == 0:
            constant = np.array([7], dtype)
        if op == "Mod" and constant[0] == -1:  # INT_MIN % -1 has no answer in C
            constant = np.array([5], dtype)
        constants.append(numpy_helper.from_array(constant, f"c{number}_{k}"))
        own = [constants[-1].name, value] if first else [value, constants[-1].name]
        value = f"v{number}_{k}"
        nodes.append(helper.make_node(op, own, [value]))
        steps.append((op, constant, first))
    if rng.random() < 0.4:  # the value is compared with what it was made from
        op = rng.choice(list(_ORDER))
        nodes += [helper.make_node(op, [value, "x"], [f"b{number}"]),
                  helper.make_node("Where", [f"b{number}", value, "x"], [f"y{number}"])]
        steps.append((op, np.array([], dtype), False))
    else:
        nodes.append(helper.make_node("Identity", [value], [f"y{number}"]))
    return nodes, constants, steps


def expected(x: np.ndarray, steps: Steps) -> np.ndarray:
    value = x
    with np.errstate(all="ignore"):
        for op, constant, first in steps:
            if op in _ORDER:
                value = np.where(_ORDER[op](value, x), value, x)
            else:
                value = _BINARY[op](constant, value) if first else _BINARY[op](value, constant)
    return value


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_chains_wrap_around(dtype: str, seed: int) -> None:
    rng, count = Random(f"{dtype} {seed}"), 8
    nodes, constants, chains = [], [], []
    for number in range(count):
        more, own, steps = chain(rng, dtype, number)
        nodes += more
        constants += own
        chains.append(steps)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(nodes, "chains", [helper.make_tensor_value_info("x", kind, ["n"])],
                              [helper.make_tensor_value_info(f"y{k}", kind, ["n"]) for k in range(count)], constants)
    x = numbers(rng, dtype, 20)
    found = tsc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])).run(None, {"x": x})
    for got, steps in zip(found, chains, strict=True):
        np.testing.assert_array_equal(got, expected(x, steps), err_msg=str(steps))


def test_what_wraps_around_may_be_an_index() -> None:
    """Ids are hashed into the rows of a table."""
    rng = np.random.default_rng(0)
    table, buckets, factor = rng.standard_normal((13, 4)).astype(np.float32), np.array([13]), np.array([6364136223846793005])
    nodes = [helper.make_node("Mul", ["ids", "factor"], ["a"]), helper.make_node("Add", ["a", "one"], ["b"]),
             helper.make_node("Mod", ["b", "buckets"], ["row"]), helper.make_node("Gather", ["table", "row"], ["y"])]
    held = {"factor": factor, "one": np.array([1442695040888963407]), "buckets": buckets, "table": table}
    graph = helper.make_graph(nodes, "hash", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
                              [numpy_helper.from_array(array, name) for name, array in held.items()])
    ids = rng.integers(-(1 << 40), 1 << 40, 100)
    with np.errstate(over="ignore"):
        rows = (ids * factor + held["one"]) % buckets
    y, = tsc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])).run(None, {"ids": ids})
    np.testing.assert_array_equal(y, table[rows])
