"""Arrays of NumPy and torch in and out of a device whose memory is the host's, without copies and without leaks."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsc.errors import InputError
from tsc.runtime import dlpack
from tsc.runtime.arrays import DeviceArray, empty_array, import_array, item_size, share_memory
from tsc.runtime.drivers.emu import EmuPlatform
from tsc.runtime.drivers.protocol import Driver
from tsc.runtime.drivers.stub import StubDriver

DTYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bool")


@pytest.fixture
def driver() -> Driver:
    return EmuPlatform("sm_80").open()


class Old:
    """An exporter from before DLPack 1.0."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, stream: object = None) -> object:
        return self.array.__dlpack__(stream=stream)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1, 7), (2, 0, 3)], ids=str)
def test_round_trip(driver: Driver, dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.arange(math.prod(shape)) % 2 * 3).astype(dtype).reshape(shape)
    for source in (values, Old(values)):
        array = import_array(source, driver, driver.default_stream, "x")
        assert (array.shape, array.dtype, array.nbytes) == (shape, dtype, values.nbytes)
        back = np.from_dlpack(array)
        np.testing.assert_array_equal(back, values)
        assert back.dtype == values.dtype
        if values.size:
            assert array.memory.value == values.__array_interface__["data"][0] == back.__array_interface__["data"][0]


def test_torch(driver: Driver) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool):
        tensor = torch.arange(12).reshape(3, 4).to(dtype)
        array = import_array(tensor, driver, driver.create_stream(), "x")
        assert array.memory.value == tensor.data_ptr() and array.dtype == str(dtype).removeprefix("torch.")
        back = torch.from_dlpack(array)
        assert back.data_ptr() == tensor.data_ptr() and back.dtype == dtype and torch.equal(back, tensor)
    with pytest.raises(InputError, match="input 'x' is not dense"):
        import_array(torch.ones(3, 4).T, driver, driver.default_stream, "input 'x'")
    with pytest.raises(InputError, match="type 5 with 64 bits"):
        import_array(torch.ones(3, dtype=torch.complex64), driver, driver.default_stream, "x")
    view = import_array(torch.ones(3, 1).T, driver, driver.default_stream, "x")  # strides of dimensions of size 1 do not matter
    assert view.shape == (1, 3)


def test_a_write_is_seen_on_the_other_side(driver: Driver) -> None:
    values = np.zeros(6, np.float32)
    array = import_array(values, driver, driver.default_stream, "x")
    driver.upload(array.memory, np.arange(6, dtype=np.float32), driver.default_stream)
    assert values.tolist() == [0, 1, 2, 3, 4, 5]
    out = empty_array((2, 3), "float32", driver, driver.default_stream)
    driver.copy(out.memory, array.memory, 24, driver.default_stream)
    assert np.from_dlpack(out).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_read_only_arrays_stay_so(driver: Driver) -> None:
    values = np.ones(3)
    values.flags.writeable = False
    array = import_array(values, driver, driver.default_stream, "x")
    assert not array.writable and not np.from_dlpack(array).flags.writeable
    with pytest.raises(BufferError, match=r"DLPack 1\.0"):
        array.__dlpack__()


def test_lifetimes(driver: Driver) -> None:
    values = np.ones(1000)
    alive = weakref.ref(values)
    array = import_array(values, driver, driver.default_stream, "x")
    del values
    back = np.from_dlpack(array)
    del array
    gc.collect()
    assert alive() is not None and back.sum() == 1000 and len(dlpack._exported) == 1
    del back
    gc.collect()
    assert alive() is None and not dlpack._exported and not driver.regions()  # type: ignore[attr-defined]
    capsule = empty_array((4,), "int8", driver, driver.default_stream).__dlpack__(max_version=(1, 0))
    assert len(dlpack._exported) == 1
    del capsule  # which nobody took
    gc.collect()
    assert not dlpack._exported


def test_what_dlpack_asks_and_is_refused(driver: Driver) -> None:
    array = empty_array((4,), "float32", driver, driver.default_stream)
    assert array.__dlpack_device__() == (1, 0) and not hasattr(array, "__cuda_array_interface__")
    assert array.__dlpack__(dl_device=(1, 0)) is not None
    for options in ({"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError, match="without a copy"):
            array.__dlpack__(**options)  # type: ignore[arg-type]


class Claims:
    """Something with a capsule and a device that it may not have."""

    def __init__(self, capsule: object, device: tuple[int, int] = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **_: object) -> object:
        return self.capsule


def test_sources_that_are_refused(driver: Driver) -> None:
    used = np.ones(3).__dlpack__()
    dlpack.take_capsule(used, "x")
    for source, words in (
            ([1.0], "is a list"), (Claims(used), "no fresh DLPack capsule"), (Claims("text"), "no fresh DLPack capsule"),
            (Claims(None, (2, 0)), r"device \(2, 0\).*copy it there"), (np.ones((3, 4)).T, "not dense"),
            (np.ones((8, 2))[::2], "not dense")):
        with pytest.raises(InputError, match=f"input 'ids' .*{words}"):
            import_array(source, driver, driver.default_stream, "input 'ids'")


def test_arrays_of_the_same_device(driver: Driver) -> None:
    one = empty_array((3,), "float32", driver, driver.create_stream())
    same = import_array(one, driver, driver.create_stream(), "x")
    assert isinstance(same, DeviceArray) and same.memory is one.memory
    other = StubDriver()
    taken = import_array(one, other, other.default_stream, "x")  # another device over the same memory: through DLPack
    assert taken.memory is not one.memory and taken.memory.value == one.memory.value


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=4))
def test_dense_strides(shape: list[int]) -> None:
    wanted = tuple(step // 4 for step in np.empty([max(size, 1) for size in shape], np.float32).strides)
    assert dlpack.dense_strides(tuple(max(size, 1) for size in shape)) == wanted


def test_what_shares_memory_is_what_numpy_says(driver: Driver) -> None:
    room = np.zeros((6, 8), np.float32)
    dense = [room[a:b] for a in range(6) for b in range(a, 7)]
    others = [*dense, room[:, 2:5], room[::-2], room[3:1:-1, 4:], room[1::3, ::-1], room[2, 3:3], np.zeros(4)]
    for one in dense:
        near = import_array(one, driver, driver.default_stream, "x")
        for array in others:
            want = np.may_share_memory(one, array)
            assert share_memory(near, array) == share_memory(array, near) == want
            if array.flags.c_contiguous:
                assert share_memory(near, import_array(array, driver, driver.default_stream, "x")) == want


def test_item_sizes() -> None:
    assert [item_size(name) for name in ("bfloat16", "bool", "float16", "int64")] == [2, 1, 2, 8]
