"""Launches over a Driver as graphs: what a run asks of the driver, at the same shape and at others, and after wrong data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from benchmarks.gpu.models import block, block_feeds
from tsc.config import Options
from tsc.kernels import workshop
from tsc.pipeline import build_package
from tsc.runtime.drivers.emu import EmuPlatform
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package


class Counted:
    """A driver whose calls are counted, the sizes that it allocates kept, and how many nodes of a graph were set last."""

    def __init__(self, driver: Any) -> None:
        self._driver, self.calls, self.sizes, self.rows = driver, Counter[str](), list[int](), 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            if name == "allocate":
                self.sizes.append(arguments[0])
            if name == "set_kernels":
                self.rows = len(arguments[2])
            return found(*arguments, **named)
        return call


@pytest.fixture(scope="module")
def package() -> Package:
    return build_package(block(), None, workshop("emu:sm_80", Options(variants=2)))


def opened(package: Package) -> tuple[Executable, Counted]:
    driver = Counted(EmuPlatform("sm_80").open())
    return Executable(package, driver=driver), driver  # type: ignore[arg-type]  # it is what it wraps


def of_run(executable: Executable, driver: Counted, n: int, t: int) -> Counter[str]:
    driver.calls.clear()
    executable.run(None, block_feeds(n, t))
    return driver.calls.copy()


def test_a_shape_that_was_seen_changes_nothing(package: Package) -> None:
    executable, driver = opened(package)
    first = of_run(executable, driver, 2, 3)
    assert first["build_graph"] == first["instantiate"] == first["launch_graph"] == 1 and first["launch"] == 0
    for _ in range(2):
        again = of_run(executable, driver, 2, 3)
        assert again["launch_graph"] == 1
        assert not again.keys() & {"allocate", "fill", "build_graph", "instantiate", "set_kernels", "launch"}, again


def test_another_shape_sets_the_same_graph(package: Package) -> None:
    executable, driver = opened(package)
    of_run(executable, driver, 2, 3)
    for shape in ((3, 5), (2, 3), (1, 7)):
        other = of_run(executable, driver, *shape)
        assert other["set_kernels"] == other["launch_graph"] == 1
        assert not other.keys() & {"build_graph", "instantiate", "launch"}, other


def test_values_at_alternating_shapes_and_after_wrong_data(package: Package) -> None:
    executable, _ = opened(package)
    session = onnxruntime.InferenceSession(block().SerializeToString(), providers=["CPUExecutionProvider"])
    for n, t in ((2, 3), (2, 3), (1, 7), (2, 3), (3, 2), (2, 3)):
        feeds = block_feeds(n, t)
        wrong = {**feeds, "ids": feeds["ids"].copy()}
        wrong["ids"][-1, -1] = 11
        with pytest.raises(tsc.InputError, match="'ids' holds an index that is out of bounds"):
            executable.run(None, wrong)
        for got, want in zip(executable.run(None, feeds), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5, err_msg=f"{n}, {t}")


def recurrence() -> onnx.ModelProto:
    """A GRU of 3 to 4 over [length, batch], which keeps scratch memory, and a sum of many blocks, which needs none."""
    rng, node = np.random.default_rng(0), helper.make_node
    held = {"w": (1, 12, 3), "r": (1, 12, 4)}
    weights = [numpy_helper.from_array(rng.standard_normal(shape, np.float32), name) for name, shape in held.items()]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "n", 3]),
             helper.make_tensor_value_info("u", TensorProto.FLOAT, ["m", 300])]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "v")]
    nodes = [node("GRU", ["x", "w", "r"], ["y"], hidden_size=4), node("Add", ["u", "u"], ["v"])]
    return helper.make_model(helper.make_graph(nodes, "recurrence", given, made, weights),
                             opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_memory_is_no_more_than_peak_bytes() -> None:
    executable, driver = opened(build_package(recurrence(), None, workshop("emu:sm_80", Options(variants=2))))
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((5, 9, 3), np.float32), "u": rng.standard_normal((700, 300), np.float32)}
    session = onnxruntime.InferenceSession(recurrence().SerializeToString(), providers=["CPUExecutionProvider"])
    driver.sizes.clear()
    found = executable.run(None, feeds)
    for got, want in zip(found, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    own = sum(driver.sizes) - sum(a.nbytes for a in (*feeds.values(), *found))
    peak = executable.peak_bytes(t=5, n=9, m=700)
    assert isinstance(peak, int) and 0 < own <= peak
    executable.trim()
    driver.sizes.clear()
    executable.prepare(t=5, n=9, m=700)
    prepared = sum(driver.sizes)
    executable.run(None, feeds)
    later = sum(driver.sizes) - prepared - sum(a.nbytes for a in (*feeds.values(), *found))
    assert prepared > 0 and later <= 16 * executable.stats["launches"]  # status words


def test_profiles_launch_one_by_one(package: Package) -> None:
    executable, driver = opened(package)
    of_run(executable, driver, 2, 3)
    driver.calls.clear()
    executable.profile(block_feeds(2, 3))
    assert driver.calls["launch"] == 5 * executable.stats["launches"]
    assert of_run(executable, driver, 2, 3)["launch_graph"] == 1
