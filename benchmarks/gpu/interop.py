"""Arrays of torch and CuPy used where they lie, and ours by them: values, writes that the other side sees, order of streams."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.gpu.session import Session, Skip
from tsc.errors import InputError
from tsc.runtime.arrays import DeviceArray, empty_array, import_array
from tsc.runtime.drivers.protocol import Arguments, Launch
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package

_SHAPES = ((), (1,), (7,), (3, 5), (0, 4), (2, 1, 129))
_TYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")
#: Bytes of what is written late: enough that whoever does not wait reads before.
_LATE = 1 << 28


def measure(session: Session) -> dict[str, Any]:
    """By library: how many checks were made. Raises AssertionError where one fails."""
    found = session.kept.setdefault("checks", {})
    for name in ("torch", "cupy") if session.kind == "cuda" else ("torch",):
        try:
            library = importlib.import_module(name)
        except ImportError as error:
            session.kept.setdefault("skipped", {})[name] = str(error)
            continue
        found[name] = sum(1 for check in _checks(session, library, name) if check() is None)
        session.save()
    if not found:
        raise Skip("neither torch nor CuPy is here")
    return session.kept


def _checks(session: Session, library: Any, name: str) -> Iterator[Callable[[], None]]:
    on_gpu = session.kind == "cuda"

    def theirs(array: Any) -> Any:
        if name == "torch":
            return library.from_numpy(array).to("cuda" if on_gpu else "cpu")
        return library.asarray(array)

    def numpy_of(array: Any) -> Any:
        return array.cpu().numpy() if name == "torch" else library.asnumpy(array)

    for dtype in _TYPES:
        for shape in _SHAPES:
            yield lambda dtype=dtype, shape=shape: _round_trip(session, library, theirs, numpy_of, dtype, shape)  # type: ignore[misc]
    yield lambda: _written(session, theirs, numpy_of)
    yield lambda: _refused(session, theirs)
    yield lambda: _fed(session, library, theirs, numpy_of)
    if on_gpu:
        yield lambda: _in_order(session, library, name)


def _values(dtype: str, shape: tuple[int, ...]) -> Any:
    return np.asarray(np.random.default_rng(len(shape)).integers(0, 2 if dtype == "bool" else 100, shape)).astype(dtype)


def _downloaded(session: Session, array: DeviceArray) -> Any:
    found = np.empty(array.shape, array.dtype)
    session.driver.download(found, array.memory, session.stream)
    session.driver.synchronize(session.stream)
    return found


def _round_trip(session: Session, library: Any, theirs: Callable[[Any], Any], numpy_of: Callable[[Any], Any], dtype: str,
                shape: tuple[int, ...]) -> None:
    values = _values(dtype, shape)
    given = import_array(theirs(values), session.driver, session.stream, "x")
    assert (given.shape, given.dtype) == (shape, dtype)
    np.testing.assert_array_equal(_downloaded(session, given), values)
    own = empty_array(shape, dtype, session.driver, session.stream)
    session.driver.upload(own.memory, values, session.stream)
    np.testing.assert_array_equal(numpy_of(library.from_dlpack(own)), values)


def _written(session: Session, theirs: Callable[[Any], Any], numpy_of: Callable[[Any], Any]) -> None:
    """A kernel writes into somebody else's array."""
    array = theirs(np.zeros(3, np.int32))
    memory = import_array(array, session.driver, session.stream, "x").memory
    function = session.function("set_word", "set_word")
    session.driver.launch(Launch(function, (1, 1, 1), (32, 1, 1), Arguments((memory, np.uint32(41)))), session.stream)
    session.driver.synchronize(session.stream)
    assert numpy_of(array).tolist() == [41 if session.computes else 0, 0, 0]


def _refused(session: Session, theirs: Callable[[Any], Any]) -> None:
    wrong = [theirs(np.zeros((4, 6), np.float32))[:, ::2]]
    if session.kind == "cuda":
        wrong.append(np.zeros(3, np.float32))
    for array in wrong:
        try:
            import_array(array, session.driver, session.stream, "the input 'x'")
        except InputError as error:
            assert "the input 'x'" in str(error)
        else:
            raise AssertionError("an array that cannot be used was taken")


def _fed(session: Session, library: Any, theirs: Callable[[Any], Any], numpy_of: Callable[[Any], Any]) -> None:
    """A model that takes and gives their arrays gives what it does with NumPy's, in them and in memory that it hands out."""
    name = next(iter(session.manifest["packages"]))
    path = session.package(name)
    if path is None:
        return
    executable = Executable(Package.read(path), driver=session.driver)
    with np.load(session.folder / session.manifest["models"]) as file:
        shapes = list(dict.fromkeys(key.split("/")[1] for key in file if key.startswith(f"{name}/")))
        for shape in shapes[:1] if session.small else shapes:
            begin = f"{name}/{shape}/in/"
            feeds = {key.removeprefix(begin): file[key] for key in file if key.startswith(begin)}
            want = executable.run(None, feeds)
            for _ in range(3):  # in memory that was let go a run before, too
                given = {key: theirs(array) for key, array in feeds.items()}
                for got, wanted in zip(executable.run(None, given), want, strict=True):
                    np.testing.assert_array_equal(numpy_of(library.from_dlpack(got)), wanted)
                out = {spec.name: theirs(np.zeros_like(array)) for spec, array in zip(executable.outputs, want)}
                executable.run(None, given, out)
                for array, wanted in zip(out.values(), want, strict=True):
                    np.testing.assert_array_equal(numpy_of(array), wanted)


def _in_order(session: Session, library: Any, name: str) -> None:
    """What one side queues late is seen by the other, without a wait of the host."""
    size = _LATE // 4
    if name == "torch":
        stream = library.cuda.Stream()
        with library.cuda.stream(stream):
            array = library.zeros(size, dtype=library.int32, device="cuda")
            for _ in range(20):
                array += 1
            given = import_array(array, session.driver, session.stream, "x")
    else:
        stream = library.cuda.Stream(non_blocking=True)
        with stream:
            array = library.zeros(size, dtype=library.int32)
            for _ in range(20):
                array += 1
            given = import_array(array, session.driver, session.stream, "x")
    found = _downloaded(session, given)
    assert found[0] == found[-1] == 20, f"what was queued before is not seen: {found[0]}, {found[-1]} instead of 20"
    own = empty_array((size,), "int32", session.driver, session.stream)
    for byte in range(1, 21):
        session.driver.fill(own.memory, byte, session.stream)
    if name == "torch":
        with library.cuda.stream(stream):
            seen = library.from_dlpack(own)[[0, -1]].cpu().numpy()
    else:
        with stream:
            seen = library.asnumpy(library.from_dlpack(own)[library.asarray([0, -1])])
    assert seen.tolist() == [0x14141414] * 2, f"what was queued before is not seen: {seen}"
