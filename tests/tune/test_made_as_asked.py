"""A config that a Space has is made as it says: a register tile that is none is slow, and nothing else would say so."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tsc.config import Options
from tsc.kernels import make_kernel, workshop
from tsc.poly.tile import TileConfig
from tsc.trace import Recorder
from tsc.tune.search import drawn
from tsc.tuning import groups_of
from tsc.tuning_group import Group, space_of


def layer(depth: int, width: int) -> onnx.ModelProto:
    """x @ w + b for any number of rows."""
    rng = np.random.default_rng(0)
    held = {"w": rng.standard_normal((depth, width), np.float32), "b": rng.standard_normal(width, np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["y"])]
    graph = helper.make_graph(nodes, "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", depth])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", width])],
                              [numpy_helper.from_array(array, name) for name, array in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def chosen(group: Group, target: str, cache: Path, count: int) -> list[TileConfig]:
    """Configs of a Group of which no two have the same widths of tiles and blocks, with tiles as low as they come: those of
    many rows take long to make."""
    space = space_of(group, workshop(target, Options(cache_dir=cache)))
    assert space is not None
    rng, found = Random(0), dict[tuple[int, ...], TileConfig]()
    for _ in range(3000):
        config = drawn(space, rng)
        if config is not None:
            known = found.setdefault((config.instr_tile[1], config.block_tile[1]), config)
            found[config.instr_tile[1], config.block_tile[1]] = min(known, config, key=lambda c: c.instr_tile[0])
    return list(found.values())[:count]


@pytest.mark.parametrize("target, width", [("cpu-avx2", 96), ("cpu-avx2", 1150), ("cpu-avx512", 1150), ("cpu-generic", 96)])
def test_register_tiles(target: str, width: int, tmp_path: Path) -> None:
    (group,), _ = groups_of(layer(24, width), {"rows": (1, 512)}, workshop(target, Options(cache_dir=tmp_path)))
    for config in chosen(group, target, tmp_path, 3):
        recorder = Recorder()
        kernel = make_kernel(replace(group.order, configs=(config,)), "kernel", recorder)
        assert [code.config for code in kernel.codes] == [config]
        assert not [str(d) for d in recorder.decisions if "tensorize" in str(d) or "not accepted" in str(d)], config
        assert_whole_vectors(kernel.codes[0].source, config)


@pytest.mark.parametrize("target, lanes", [("cpu-avx2", 8), ("cpu-avx512", 16), ("cpu-generic", 4)])
def test_stages_narrower_than_their_panels(target: str, lanes: int, tmp_path: Path) -> None:
    """Each lane was divided by the panel's width for itself: gcc took 20 s, and nothing ever won."""
    rng = np.random.default_rng(0)
    held = {"v": rng.standard_normal((64, 256), np.float32), "w": rng.standard_normal((256, 32), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "v"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("MatMul", ["b", "w"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size]) for name, size in (("x", 64), ("y", 32))]
    mlp = helper.make_model(helper.make_graph(nodes, "mlp", ends[:1], ends[1:], [
        numpy_helper.from_array(array, name) for name, array in held.items()]), opset_imports=[helper.make_opsetid("", 17)])
    shop = workshop(target, Options(cache_dir=tmp_path))
    (group,), _ = groups_of(mlp, {"rows": (1, 512)}, shop)
    space = space_of(group, shop)
    assert space is not None and len(space.default.stage_tiles) == 2
    for widths in ((lanes, lanes), (2 * lanes, lanes)):
        config = space.whole(replace(space.default, row_tile=(12,), stage_tiles=((3, widths[0]), (2, widths[1]))))
        assert space.refusal(config) is None
        kernel = make_kernel(replace(group.order, configs=(config,)), "kernel", Recorder())
        assert [code.config for code in kernel.codes] == [config]
        assert_whole_vectors(kernel.codes[0].source, config)


def assert_whole_vectors(source: str, config: TileConfig) -> None:
    """Columns of register tiles are read a vector at a time."""
    columns = [line.strip() for line in source.splitlines() if re.search(r" tsc_b\d+ = ", line)]
    assert columns and not [line for line in columns if "= (*(const tsc_" not in line], config
