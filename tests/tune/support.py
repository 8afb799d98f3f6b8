"""A small model whose kernels are tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tsc.config import Options
from tsc.kernels import Workshop, workshop
from tsc.poly.tile import TileConfig
from tsc.runtime.cost import Rates
from tsc.runtime.select import least
from tsc.tune.records import Record
from tsc.tune.simulate import Product
from tsc.tuning import groups_of
from tsc.tuning_group import Group

DIMS = {"n": (1, 24)}


def model() -> onnx.ModelProto:
    """relu(x @ w + b), and the softmax of x: two kernels."""
    rng = np.random.default_rng(0)
    held = {"w": rng.standard_normal((40, 56), np.float32), "b": rng.standard_normal(56, np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["c"]),
             helper.make_node("Relu", ["c"], ["y"]), helper.make_node("Softmax", ["x"], ["z"], axis=-1)]
    graph = helper.make_graph(nodes, "model", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 40])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 56]),
                               helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 40])],
                              [numpy_helper.from_array(array, name) for name, array in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def groups(cache: Path, target: str = "cpu") -> tuple[list[Group], Workshop]:
    """The model's Groups."""
    shop = workshop(target, Options(cache_dir=cache))
    found, _ = groups_of(model(), DIMS, shop, [{"n": 1}, {"n": 5}, {"n": 24}])
    return found, shop


def product(found: list[Group]) -> Group:
    """The matrix product among Groups."""
    return next(group for group in found if "contraction" in group.order.symbol())




def shares_of_best(pool: Mapping[TileConfig, Rates], products: Iterator[Product], units: int,
                   seconds: Callable[[TileConfig, Product], float], record: Callable[[TileConfig, Product], Record],
                   ) -> Iterator[float]:
    """The speed of the Variant that a run picks for each product on a simulated device, as a share of the pool's fastest."""
    for product in products:
        times = [seconds(config, product) for config in pool]
        counted = [record(config, product) for config in pool]
        expected = [sum(rates.terms(own.blocks, own.work or {}, units).values()) for rates, own in zip(pool.values(), counted)]
        yield min(times) / times[least(expected)]


def lengths(seed: int) -> list[int]:
    """Of section 7.3 of the paper: 62 of 1 to 512, at random."""
    return Random(seed).sample(range(1, 513), 62)
