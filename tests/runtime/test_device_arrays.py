"""`Executable.run` with arrays that lie in a device's memory, fed and given, beside NumPy's: the same values, no copies, and no
memory of others is written."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tsc
from tests.runtime.region_plans import PLANS, request
from tests.runtime.test_replay import Counted, opened
from tsc.errors import InputError, ShapeError
from tsc.loop_ir.gpu import widen
from tsc.runtime.arrays import BASE_ALIGNMENT, DeviceArray, import_array
from tsc.runtime.drivers.cpu_driver import CpuDriver
from tsc.runtime.drivers.emu import EmuPlatform
from tsc.runtime.drivers.stub import StubDriver
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package
from tsc.runtime.plan import Plan

F = TensorProto.FLOAT
Made = Callable[..., Executable]


def compiled(nodes: list[Any], inputs: list[Any], outputs: list[str], held: dict[str, np.ndarray] | None = None,
             target: str = "emu:sm_90a", **options: Any) -> Executable:
    made = [helper.make_tensor_value_info(name, F, None) for name in outputs]
    graph = helper.make_graph(nodes, "model", inputs, made, [numpy_helper.from_array(a, n) for n, a in (held or {}).items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return tsc.compile(model, target=target, **options)


@pytest.fixture(scope="module")
def two() -> Executable:
    """y = relu(x + w), z the sum of y's rows; over [n, 7]."""
    nodes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Relu", ["s"], ["y"]),
             helper.make_node("ReduceSum", ["y", "axes"], ["z"], keepdims=0)]
    given = [helper.make_tensor_value_info(name, F, ["n", 7]) for name in ("x", "w")]
    return compiled(nodes, given, ["y", "z"], {"axes": np.array([1])}, dims={"n": (0, 1 << 20)})


def data(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([n, seed]).standard_normal((n, 7)).astype(np.float32)


def borrowed(executable: Executable, array: np.ndarray) -> DeviceArray:
    """A NumPy array's own memory as an array of the emulated device, whose memory is the host's."""
    driver = executable._device.driver  # type: ignore[union-attr]
    return import_array(array, driver, driver.create_stream(), "an array")


def place(array: DeviceArray | np.ndarray) -> int:
    return array.memory.value if isinstance(array, DeviceArray) else array.__array_interface__["data"][0]


def used(executable: Executable) -> set[int]:
    """Where all that the last launches of all Contexts read and write begins."""
    contexts: list[Any] = executable._contexts._idle  # type: ignore[assignment]
    return {begin for context in contexts for prepared in context._prepared.values() for begin in prepared.memory}


# -- in and out --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", [0, 1, 3, 64, 257])
def test_values_are_those_of_numpys_arrays(two: Executable, n: int) -> None:
    x, w = data(n), data(n, 1)
    want = two.run(None, {"x": x, "w": w})
    assert all(isinstance(result, np.ndarray) for result in want)
    np.testing.assert_array_equal(want[0], np.maximum(x + w, 0))
    for feeds in ({"x": two.to_device(x), "w": two.to_device(w)}, {"x": two.to_device(x), "w": w},
                  {"x": x[::-1][::-1], "w": borrowed(two, w)}):
        found = two.run(None, feeds)
        for got, wanted, spec in zip(found, want, two.outputs, strict=True):
            assert isinstance(got, DeviceArray) and (got.shape, got.dtype) == (wanted.shape, spec.dtype)
            np.testing.assert_array_equal(got.numpy(), wanted)
            np.testing.assert_array_equal(np.from_dlpack(got), wanted)
            assert not n or np.from_dlpack(got).__array_interface__["data"][0] == place(got)


def test_what_is_fed_is_read_where_it_is(two: Executable) -> None:
    x, w = data(5), data(5, 1)
    feeds = {"x": borrowed(two, x), "w": borrowed(two, w)}
    for _ in range(3):
        y, z = two.run(None, feeds)
        np.testing.assert_array_equal(y.numpy(), np.maximum(x + w, 0))
        assert used(two) >= set(map(place, (x, w, y, z)))
        x += 1


def test_nothing_is_uploaded_nor_downloaded_but_status_words() -> None:
    """Of a model that looks rows up, multiplies them and reduces: it has data to find wrong, and memory of its own."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["x"]), helper.make_node("MatMul", ["x", "w"], ["h"]),
             helper.make_node("Softmax", ["h"], ["y"]), helper.make_node("ReduceSum", ["h", "axes"], ["z"], keepdims=0)]
    held = {"table": rng.standard_normal((11, 16), np.float32), "w": rng.standard_normal((16, 24), np.float32),
            "axes": np.array([0])}
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "t"])
    executable, driver = opened(compiled(nodes, [ids], ["y", "z"], held, "emu:sm_80")._package)
    feeds = {"ids": executable.to_device(np.array([[3, 0, 10], [5, 5, 1]]))}
    executable.run(None, feeds)
    driver.calls.clear()
    executable.run(None, feeds)
    assert driver.calls["download"] == 1 and not driver.calls.keys() & {"upload", "copy"}, driver.calls
    assert driver.calls["allocate"] == len(executable.outputs)


def test_results_belong_to_the_caller(two: Executable) -> None:
    kept = []
    for seed in range(6):
        x, w = data(8, seed), data(8, seed + 1)
        kept.append((two.run(None, {"x": two.to_device(x), "w": w}), np.maximum(x + w, 0)))
        two.run(None, {"x": x + 9, "w": w})
    places = [place(array) for results, _ in kept for array in results]
    assert len(set(places)) == len(places)
    for (y, z), want in kept:
        np.testing.assert_array_equal(y.numpy(), want)
        np.testing.assert_allclose(z.numpy(), want.sum(1, dtype=np.float64), rtol=1e-5)


def test_a_result_is_fed_again(two: Executable) -> None:
    x, w = data(4), data(4, 1)
    array, want = two.to_device(x), x
    for _ in range(3):
        array, want = two.run(["y"], {"x": array, "w": w})[0], np.maximum(want + w, 0)
    np.testing.assert_array_equal(array.numpy(), want)


def test_borrowed_memory_is_never_written(two: Executable) -> None:
    x, w, y = data(6), data(6, 1), np.zeros((6, 7), np.float32)
    before = x.copy(), w.copy()
    two.run(None, {"x": borrowed(two, x), "w": borrowed(two, w)}, {"y": borrowed(two, y)})
    want = y.copy()
    for seed in range(2, 6):  # of the same sizes: a Context's own memory fits, the caller's would
        found, _ = two.run(None, {"x": data(6, seed), "w": data(6, seed)})
        np.testing.assert_array_equal(found, np.maximum(2 * data(6, seed), 0))
        two.run(None, {"x": two.to_device(data(6, seed)), "w": data(6, seed)})
    for array, wanted in ((x, before[0]), (w, before[1]), (y, want)):
        np.testing.assert_array_equal(array, wanted)


def test_what_was_borrowed_is_let_go(two: Executable, chain: Package) -> None:
    def run(executable: Executable, feeds: dict[str, np.ndarray], out: bool = False) -> list[weakref.ref[Any]]:
        near = {name: borrowed(executable, array) for name, array in feeds.items()}
        found = executable.run(None, near)
        return [weakref.ref(array.memory) for array in (*near.values(), *found)]

    dead = run(two, {"x": data(3), "w": data(3)})
    executable = Executable(chain, 1, StubDriver())
    with pytest.raises(ShapeError):
        run(executable, {"x": np.ones((4, 3), np.float32), "w": np.ones(3, np.float32)})
    dead += run(executable, {"x": np.ones((4, 2), np.float32), "w": np.ones(2, np.float32)})
    for context in executable._contexts._idle:
        assert not context._feeds and not context._results  # type: ignore[attr-defined]
    executable._device.driver.calls.clear()  # type: ignore[union-attr]
    executable._device.driver.runs.clear()  # type: ignore[union-attr]
    gc.collect()
    assert not [ref for ref in dead if ref() is not None]


def test_memory_that_kernels_cannot_read_is_copied_within_the_device(two: Executable) -> None:
    assert BASE_ALIGNMENT == widen.BASE_ALIGNMENT
    room = np.zeros(7 * 9 + 8, np.float32)
    first = next(i for i in range(1, 5) if (place(room) + 4 * i) % BASE_ALIGNMENT == 4)
    x, w = room[first:first + 63].reshape(9, 7), data(9, 1)
    x[...] = data(9)
    y = np.zeros_like(room)[first:first + 63].reshape(9, 7)
    driver = Counted(EmuPlatform("sm_90a").open())
    counted = Executable(two._package, driver=driver)  # type: ignore[arg-type]  # it is what it wraps
    for target, copies in ((None, 1), (y, 1), (borrowed(counted, y), 2)):
        driver.calls.clear()
        found = counted.run(["y"], {"x": borrowed(counted, x), "w": w}, None if target is None else {"y": target})[0]
        np.testing.assert_array_equal(found if isinstance(found, np.ndarray) else found.numpy(), np.maximum(x + w, 0))
        assert driver.calls["copy"] == copies and not used(counted) & {place(x), place(y)}
    assert np.all(y == np.maximum(x + w, 0)) and np.all(x == data(9))


# -- out ---------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", [0, 1, 33])
@pytest.mark.parametrize("near", [False, True])
def test_out_on_the_device(two: Executable, n: int, near: bool) -> None:
    x, w, y, z = data(n), data(n, 1), np.full((n, 7), 9, np.float32), np.full(n, 9, np.float32)
    feeds = {"x": two.to_device(x) if near else x, "w": w}
    target, want = borrowed(two, y), np.maximum(x + w, 0)
    found = two.run(None, feeds, {"y": target})
    assert found[0] is target and isinstance(found[1], DeviceArray) == near
    np.testing.assert_array_equal(y, want)
    found = two.run(None, feeds, {"y": target, "z": z})
    assert found[0] is target and found[1] is z
    np.testing.assert_allclose(z, want.sum(1, dtype=np.float64), rtol=1e-5)


def test_numpys_arrays_for_results_of_a_run_on_the_device(two: Executable) -> None:
    x, w, room = data(4), data(4, 1), np.full((8, 14), 9, np.float32)
    found = two.run(None, {"x": two.to_device(x), "w": w}, {"y": room[::2, 3:10]})
    np.testing.assert_array_equal(room[::2, 3:10], np.maximum(x + w, 0))
    assert (room[1::2] == 9).all() and isinstance(found[1], DeviceArray)


@pytest.mark.parametrize("shift", [0, 1, 4])
def test_an_array_that_is_fed_as_well(two: Executable, shift: int) -> None:
    """In place, and rows on: what is read must not have been written."""
    room, w = np.vstack([data(6), np.zeros((4, 7), np.float32)]), data(6, 1)
    want = np.maximum(room[:6] + w, 0)
    two.run(None, {"x": borrowed(two, room[:6]), "w": w}, {"y": borrowed(two, room[shift:shift + 6])})
    np.testing.assert_array_equal(room[shift:shift + 6], want)


def test_what_cannot_be_written(two: Executable) -> None:
    feeds, room = {"x": data(2), "w": data(2)}, data(4)
    fixed = data(2)
    fixed.flags.writeable = False
    for out, error, words in (
            ({"y": two.to_device(data(3))}, ShapeError, r"output 'y' has shape \(3, 7\), expected \(2, 7\)"),
            ({"y": two.to_device(np.zeros((2, 7)))}, InputError, "output 'y' has dtype float64, expected float32"),
            ({"y": borrowed(two, fixed)}, InputError, "output 'y' is read-only"),
            ({"y": Elsewhere(data(2))}, InputError, r"output 'y' lies on DLPack's device \(2, 0\).*copy it there first"),
            ({"y": borrowed(two, room[:2]), "z": borrowed(two, room[1, :2])}, InputError, "where another output's lies"),
            ({"y": borrowed(two, room[:2]), "z": room[1, :2]}, InputError, "where another output's lies"),
            ({"y": room[:2], "z": borrowed(two, room[1, :2])}, InputError, "where another output's lies")):
        with pytest.raises(error, match=words):
            two.run(None, feeds, out)
    y, z = borrowed(two, room[:2]), borrowed(two, room[2, :2])
    assert two.run(None, feeds, {"y": y, "z": z})[1] is z


# -- what is refused ---------------------------------------------------------------------------------------------------

class Elsewhere:
    """An array that says it lies on another device, or that refuses to say more."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (2, 0), error: Exception | None = None) -> None:
        self.array, self.device, self.error = array, device, error

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.array.__dlpack__(**{**options, "stream": None})


def test_feeds_that_are_refused(two: Executable) -> None:
    good = two.to_device(data(2))
    for wrong, error, words in (
            (two.to_device(np.zeros((2, 7))), InputError, "input 'w' has dtype float64, expected float32"),
            (two.to_device(np.zeros((2, 7), np.int32)), InputError, "input 'w' has dtype int32, expected float32"),
            (two.to_device(np.zeros(7, np.float32)), ShapeError, "input 'w' has rank 1"),
            (two.to_device(data(3)), ShapeError, "input 'w' has size 3 at axis 0, expected"),
            (two.to_device(np.zeros((2, 6), np.float32)), ShapeError, "input 'w' has size 6 at axis 1, expected 7"),
            (Elsewhere(data(2)), InputError, r"input 'w' lies on DLPack's device \(2, 0\).*copy it there first"),
            (Elsewhere(data(2), (1, 0), BufferError("mine")), InputError, "input 'w' .*mine")):
        with pytest.raises(error, match=words):
            two.run(None, {"x": good, "w": wrong})
    assert len(two.run(None, {"x": good, "w": good})) == 2


def test_to_device(two: Executable, chain: Package) -> None:
    values = np.arange(12, dtype=np.int64).reshape(3, 4)
    array = two.to_device(values[:, ::2])
    assert repr(array) == "<DeviceArray int64[3, 2] on emulated sm_90a>" and array.ndim == 2
    values[:] = 0
    assert array.numpy().tolist() == [[0, 2], [4, 6], [8, 10]]
    for wrong in (np.array(["a"]), np.zeros(3, ">f4"), np.zeros(3, "complex64")):
        with pytest.raises(InputError, match="the array has dtype"):
            two.to_device(wrong)
    with pytest.raises(InputError, match=r"runs on 'cpu-generic', where NumPy's arrays"):
        Executable(chain, 1).to_device(values)


# -- more of a plan ----------------------------------------------------------------------------------------------------

def test_sizes_that_the_elements_of_an_input_tell() -> None:
    given = [helper.make_tensor_value_info("x", F, ["n", 1]), helper.make_tensor_value_info("shape", TensorProto.INT64, [2])]
    executable = compiled([helper.make_node("Expand", ["x", "shape"], ["y"])], given, ["y"])
    for n, m in ((1, 1), (3, 5), (4, 0), (2, 70)):
        x = np.arange(n, dtype=np.float32).reshape(n, 1)
        found, = executable.run(None, {"x": executable.to_device(x), "shape": executable.to_device(np.array([n, m]))})
        np.testing.assert_array_equal(found.numpy(), np.broadcast_to(x, (n, m)))
    with pytest.raises(ShapeError, match="'shape' has shape"):
        executable.run(None, {"x": x, "shape": executable.to_device(np.arange(3))})


def test_bfloat16() -> None:
    narrow = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["n"])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "model", [narrow],
                              [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    executable = tsc.compile(model, target="emu:sm_90a")
    x = np.array([0x3F80, 0xC000, 0x0000], np.uint16).view(executable.inputs[0].numpy)
    near = borrowed(executable, x.view(np.uint16))
    near = DeviceArray(near.memory, near.shape, "bfloat16", near.driver, near.stream)
    found, = executable.run(None, {"x": near})
    assert found.dtype == "bfloat16" and found.numpy().dtype == x.dtype
    assert found.numpy().view(np.uint16).tolist() == [0xBF80, 0x4000, 0x8000]


@pytest.mark.parametrize("name", PLANS)
def test_branches_loops_and_computed_sizes(made: Made, name: str) -> None:
    plan: Plan = PLANS[name]()
    host = made(plan)
    driven = Executable(host._package, 2, CpuDriver(2))
    for n in (0, 1, 5, 17):
        for ids in ((0, 0), (1, 1)) if name == "copy" else ((0, 0), (3, 2), (12, 0)):
            feeds = request(n, ids, seed=n)
            want = host.run(None, feeds)
            near = {"x": driven.to_device(feeds["x"]), "ids": driven.to_device(feeds["ids"])}
            targets = [np.empty_like(array) for array in want]
            out = {spec.name: borrowed(driven, a) for spec, a in zip(plan.outputs, targets)}
            for given, target in ((near, None), ({**feeds, "x": near["x"]}, out), (feeds, out)):
                found = driven.run(None, given, target)
                assert all(isinstance(array, DeviceArray) for array in found)
                for got, wanted in zip(found, want, strict=True):
                    np.testing.assert_array_equal(got.numpy(), wanted)
                    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            for got, wanted in zip(targets, want, strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_a_late_shape_that_out_does_not_have(made: Made) -> None:
    driven = Executable(made(PLANS["everything"]())._package, 1, CpuDriver(1))
    late = next(spec for spec in driven.outputs if not all(size.dims() <= {"n"} for size in spec.shape))
    feeds = {name: driven.to_device(array) for name, array in request(17, (3, 2)).items()}
    with pytest.raises(ShapeError, match=f"the array for output '{late.name}' has shape"):
        driven.run(None, feeds, {late.name: driven.to_device(np.zeros([999] * len(late.shape), late.numpy))})


# -- others' arrays, on what says it is a GPU --------------------------------------------------------------------------

class Claimed(CpuDriver):
    """A CPU whose memory says it is a GPU's: arrays of other libraries are imported as there."""

    @property
    def dlpack_device(self) -> tuple[int, int]:
        return (2, 0)


class Interface:
    """An array of a library that has CUDA's array interface alone."""

    def __init__(self, array: np.ndarray, **changes: Any) -> None:
        read_only = not array.flags.writeable
        self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "version": 3,
                                         "data": (place(array), read_only), **changes}


def test_arrays_of_other_libraries(chain: Package, expected: Callable[..., np.ndarray]) -> None:
    executable, other = Executable(chain, 1, Claimed(1)), Executable(chain, 1, Claimed(1))
    x, w = np.arange(12, dtype=np.float32).reshape(4, 3)[:3], np.ones(3, np.float32)
    for feed in (other.to_device(x), Interface(x), Interface(x, stream=7)):
        found = executable.run(None, {"x": feed, "w": w})
        assert all(isinstance(array, DeviceArray) for array in found)
        np.testing.assert_array_equal(found[0].numpy(), expected(x, w))
    y = np.zeros_like(x)
    executable.run(None, {"x": Interface(x), "w": Interface(w)}, {"y": Interface(y), "z": (z := other.to_device(y))})
    np.testing.assert_array_equal(y, expected(x, w))
    np.testing.assert_array_equal(z.numpy(), x)
    y.flags.writeable = False
    for feeds, out, words in (
            ({"x": Interface(x.T, strides=x.T.strides), "w": w}, {}, "input 'x' is not dense"),
            ({"x": Elsewhere(x, (2, 1)), "w": w}, {}, r"input 'x' lies on DLPack's device \(2, 1\)"),
            ({"x": Elsewhere(x, (2, 0), RuntimeError("has a gradient")), "w": w}, {}, "input 'x' cannot be .*a gradient"),
            ({"x": x, "w": Interface(w.astype(np.float16))}, {}, "input 'w' has dtype float16, expected float32"),
            ({"x": x, "w": w}, {"y": Interface(y)}, "output 'y' is read-only")):
        with pytest.raises(InputError, match=words):
            executable.run(None, feeds, out)


# -- other questions, and threads --------------------------------------------------------------------------------------

def test_profiles_between_runs(two: Executable) -> None:
    x, w = data(9), data(9, 1)
    for _ in range(2):
        feeds = {"x": two.to_device(x), "w": two.to_device(w)}
        assert len(two.profile(feeds, repeat=1).kernels) == two.stats["kernels"]
        np.testing.assert_array_equal(two.run(["y"], {**feeds, "x": two.to_device(x + 1)})[0].numpy(), np.maximum(x + 1 + w, 0))


def test_many_threads_at_once(two: Executable) -> None:
    shared = {n: (two.to_device(data(n, n)), data(n, n)) for n in range(1, 9)}

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(12):
            n = int(rng.integers(1, 9))
            (x, values), w = shared[n], rng.standard_normal((n, 7)).astype(np.float32)
            y = np.empty_like(w)
            way = rng.integers(3)
            feeds = {"x": values if way == 2 else x, "w": two.to_device(w) if way == 0 else w}
            out = {"y": borrowed(two, y)} if rng.integers(2) else None
            found = two.run(None, feeds, out)[0]
            want = np.maximum(values + w, 0)
            np.testing.assert_array_equal(found if isinstance(found, np.ndarray) else found.numpy(), want)
            assert out is None or np.array_equal(y, want)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))  # raises what a thread raised


def test_a_cpu_reads_what_the_host_can_read(chain: Package, expected: Callable[..., np.ndarray], two: Executable) -> None:
    x, w = data(3), np.ones(7, np.float32)
    found = Executable(chain, 1).run(None, {"x": two.to_device(x), "w": w})
    assert isinstance(found[0], np.ndarray)
    np.testing.assert_array_equal(found[0], expected(x, w))
    with pytest.raises(InputError, match=r"input 'x' is a Elsewhere of which no array can be made .*there"):
        Executable(chain, 1).run(None, {"x": Elsewhere(x, error=BufferError("there")), "w": w})


def test_torch(two: Executable) -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.ones(3, 7), torch.ones(3, 7)
    y, _ = two.run(None, {"x": two.to_device(x), "w": w})
    assert torch.from_dlpack(y).data_ptr() == place(y) and torch.equal(torch.from_dlpack(y), x + w)
