"""`tsc.InferenceSession` beside ONNX Runtime's: the same scripts with another import, and what only one of them has."""

from __future__ import annotations

import gc
import logging
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tsc
from tests.session import scripts
from tests.test_tiny import tiny_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("models") / "tiny.onnx"
    model = tiny_model()
    model.producer_name = "somebody"
    onnx.save(model, found)
    return found


@pytest.fixture(scope="module")
def session(path: Path) -> tsc.InferenceSession:
    return tsc.InferenceSession(path)


def both(script: Callable[..., list[Any]], *args: Any) -> None:
    for ours, theirs in zip(script(tsc, *args), script(onnxruntime, *args), strict=True):
        if isinstance(theirs, np.ndarray):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        else:
            assert ours == theirs


@pytest.mark.parametrize("script", [scripts.quickstart, scripts.with_options, scripts.io_binding])
def test_scripts(script: Callable[..., list[Any]], path: Path) -> None:
    both(script, path)


def test_a_profile(path: Path, tmp_path: Path) -> None:
    both(scripts.profiled, path, tmp_path)


def test_defaults_are_those_of_onnx_runtime() -> None:
    for ours, theirs in ((tsc.SessionOptions(), onnxruntime.SessionOptions()), (tsc.RunOptions(), onnxruntime.RunOptions())):
        for name in (n for n in dir(ours) if not n.startswith("_") and n not in ("overridden_dims", "threads", "log_level")):
            if not callable(getattr(ours, name)):
                assert int(getattr(ours, name)) == int(getattr(theirs, name)) if hasattr(
                    getattr(ours, name), "bit_length") else getattr(ours, name) == getattr(theirs, name), name
    for kind in ("GraphOptimizationLevel", "ExecutionMode"):
        for member in getattr(tsc, kind):
            assert int(getattr(getattr(onnxruntime, kind), member.name)) == int(member), member


def test_a_package_and_its_bytes(session: tsc.InferenceSession, tmp_path: Path) -> None:
    session.executable.save(tmp_path / "tiny.tscpack")
    x = np.ones((4, 13), np.float32)
    want, = session.run(None, {"x": x})
    for source in (tmp_path / "tiny.tscpack", (tmp_path / "tiny.tscpack").read_bytes()):
        loaded = tsc.InferenceSession(source)
        np.testing.assert_array_equal(loaded.run(["y"], {"x": x})[0], want)
        assert loaded.get_inputs() == session.get_inputs() and loaded.executable.stats["compiles"] == 0
    with pytest.raises(tsc.InputError, match="compiled already and cannot heed dims"):
        tsc.InferenceSession(tmp_path / "tiny.tscpack", dims={"batch": 3})


def test_names_shapes_and_types(session: tsc.InferenceSession) -> None:
    theirs = onnxruntime.InferenceSession(tiny_model().SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, other in zip([*session.get_inputs(), *session.get_outputs()], [*theirs.get_inputs(), *theirs.get_outputs()]):
        assert (ours.name, ours.shape, ours.type) == (other.name, other.shape, other.type)
    assert session.get_overridable_initializers() == [] and session.get_provider_options() == {"CPUExecutionProvider": {}}


def test_a_free_dimension_that_is_overridden(path: Path) -> None:
    options = tsc.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 3)
    session = tsc.InferenceSession(path, options)
    assert session.run(None, {"x": np.ones((3, 13), np.float32)})[0].shape == (3, 21)
    with pytest.raises(tsc.ShapeError, match="4"):
        session.run(None, {"x": np.ones((4, 13), np.float32)})


def test_threads_and_log_levels(path: Path) -> None:
    options = tsc.SessionOptions(intra_op_num_threads=1, log_severity_level=0)
    before = logging.getLogger("tsc").level
    assert tsc.InferenceSession(path, options).executable.stats["threads"] == 1
    assert logging.getLogger("tsc").level == before


@pytest.mark.parametrize(("name", "value"), [("intra_op_num_threads", -1), ("intra_op_num_threads", "2"),
                                             ("log_severity_level", 5), ("log_severity_level", None)])
def test_options_that_are_none(path: Path, name: str, value: Any) -> None:
    options = tsc.SessionOptions()
    setattr(options, name, value)
    with pytest.raises(tsc.InputError, match=name):
        tsc.InferenceSession(path, options)


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(AttributeError):
        tsc.SessionOptions().intra_op_threads = 2  # type: ignore[attr-defined]
    for options, get in ((tsc.SessionOptions(), "get_session_config_entry"), (tsc.RunOptions(), "get_run_config_entry")):
        with pytest.raises(tsc.InputError, match="no config entry 'missing'"):
            getattr(options, get)("missing")


def test_providers(path: Path) -> None:
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not among the available ones"):
        tsc.InferenceSession(path, providers=[("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"])
    with pytest.raises(tsc.InputError, match="providers are names"):
        tsc.InferenceSession(path, providers=[3])  # type: ignore[list-item]


def test_a_run_that_is_terminated(session: tsc.InferenceSession) -> None:
    options = tsc.RunOptions()
    options.terminate = True
    with pytest.raises(tsc.InputError, match="terminate is set"):
        session.run(None, {"x": np.ones((1, 13), np.float32)}, options)


def test_runs_in_other_threads(session: tsc.InferenceSession) -> None:
    done, found = threading.Event(), []

    def back(results: list[np.ndarray], user_data: Any, error: str) -> None:
        found.append((results, user_data, error))
        if len(found) == 2:
            done.set()

    x = np.ones((2, 13), np.float32)
    session.run_async(["y"], {"x": x}, back, "first")
    session.run_async(["y"], {"x": x.astype(np.float64)}, back, "second")
    assert done.wait(30)
    by_name = {data: (results, error) for results, data, error in found}
    np.testing.assert_array_equal(by_name["first"][0][0], session.run(None, {"x": x})[0])
    assert by_name["first"][1] == "" and by_name["second"][0] == [] and "has dtype float64" in by_name["second"][1]


def test_a_child_that_is_forked_has_threads_of_its_own(session: tsc.InferenceSession) -> None:
    x = np.ones((2, 13), np.float32)
    done = threading.Event()
    session.run_async(None, {"x": x}, lambda *_: done.set(), None)
    assert done.wait(30)
    child = os.fork()
    if not child:
        again = threading.Event()
        session.run_async(None, {"x": x}, lambda *_: again.set(), None)
        os._exit(0 if again.wait(30) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_whoever_waits_hears_of_anything(session: tsc.InferenceSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise MemoryError

    heard: list[str] = []
    done = threading.Event()
    monkeypatch.setattr(session, "run", fails)
    session.run_async(None, {}, lambda results, data, error: (heard.append(error), done.set()), None)
    assert done.wait(30) and heard == ["MemoryError"]


def test_a_profile_that_cannot_be_written_and_one_in_a_folder_of_any_name(path: Path, tmp_path: Path) -> None:
    (tmp_path / "a__b").mkdir()
    for prefix, fails in ((tmp_path / "a__b" / "t_", False), (tmp_path / "nowhere" / "t", True)):
        made = tsc.InferenceSession(path, tsc.SessionOptions(enable_profiling=True, profile_file_prefix=str(prefix)))
        if fails:
            with pytest.raises((tsc.PackageError, tsc.LaunchError), match="nowhere"):
                made.end_profiling()
        else:
            assert Path(made.end_profiling()).parent == prefix.parent
        assert made.end_profiling() == ""


def test_bytes_of_any_kind_and_a_message(path: Path) -> None:
    x = np.ones((1, 13), np.float32)
    for source in (bytearray(path.read_bytes()), memoryview(path.read_bytes())):
        made = tsc.InferenceSession(source)
        assert made.run(None, {"x": x})[0].shape == (1, 21) and made.get_modelmeta() == type(made.get_modelmeta())()
    assert tsc.InferenceSession(onnx.load(path)).get_modelmeta().producer_name == "somebody"


# -- bindings -----------------------------------------------------------------------------------------------------

def test_bound_outputs_take_no_memory(session: tsc.InferenceSession) -> None:
    x, y = np.ones((512, 13), np.float32), np.empty((512, 21), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(20):
            session.run_with_iobinding(binding)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000, "an output is 43 kB"
    result, = binding.copy_outputs_to_cpu()
    assert result.ctypes.data == y.ctypes.data


def test_bindings_that_are_wrong(session: tsc.InferenceSession) -> None:
    binding, x = session.io_binding(), np.ones((2, 13), np.float32)
    with pytest.raises(tsc.InputError, match="no output is bound"):
        session.run_with_iobinding(binding)
    with pytest.raises(tsc.InputError, match="there is no input 'z'"):
        binding.bind_cpu_input("z", x)
    with pytest.raises(tsc.InputError, match="there is no output 'z'"):
        binding.bind_output("z")
    with pytest.raises(tsc.InputError, match="device 'cuda'"):
        binding.bind_output("y", "cuda")
    with pytest.raises(tsc.InputError, match="give its element_type and shape"):
        binding.bind_output("y", buffer_ptr=x.ctypes.data)
    with pytest.raises(tsc.InputError, match="no address"):
        binding.bind_input("x", "cpu", 0, np.float32, (2, 13), 0)
    with pytest.raises(tsc.InputError, match="whole numbers"):
        binding.bind_input("x", "cpu", 0, np.float32, (2, -13), x.ctypes.data)
    with pytest.raises(tsc.InputError, match="no element type"):
        binding.bind_input("x", "cpu", 0, "float99", (2, 13), x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, (3, 21), np.empty((3, 21), np.float32).ctypes.data)
    binding.bind_cpu_input("x", x)
    with pytest.raises(tsc.ShapeError, match=r"output 'y' has shape \(3, 21\), expected \(2, 21\)"):
        session.run_with_iobinding(binding)


def test_element_types_by_onnx_number() -> None:
    for number in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.UINT8):
        value = tsc.OrtValue.ortvalue_from_shape_and_type([2], number)
        assert value.element_type() == number and value.numpy().dtype == helper.tensor_dtype_to_np_dtype(number)
    with pytest.raises(tsc.InputError, match="no element type 99"):
        tsc.OrtValue.ortvalue_from_shape_and_type([2], 99)
    with pytest.raises(tsc.InputError, match="content of an OrtValue"):
        tsc.OrtValue.ortvalue_from_numpy(np.ones(3, np.float32)).update_inplace(np.ones(2, np.float32))
