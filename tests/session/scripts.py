"""Scripts as users of ONNX Runtime write them, with the module that they import as `ort` for an argument. Each returns what
it computed, so that the same script can be run with both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def quickstart(ort: Any, path: Path) -> list[Any]:
    """Load, look at names, shapes and types, run."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert "CPUExecutionProvider" in ort.get_available_providers() and session.get_providers() == ["CPUExecutionProvider"]
    first, (output,) = session.get_inputs()[0], session.get_outputs()
    shape = [3 if isinstance(d, str) else d for d in first.shape]
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7
    return [first.name, first.type, first.shape, output.name, output.type, *session.run([output.name], {first.name: x}),
            *session.run(None, {first.name: x[:1]}), session.get_modelmeta().graph_name, session.get_modelmeta().producer_name]


def with_options(ort: Any, path: Path) -> list[Any]:
    """Options and run options, a model as bytes."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    run_options = ort.RunOptions()
    run_options.log_severity_level = 3
    session = ort.InferenceSession(path.read_bytes(), sess_options=options)
    x = np.linspace(-1, 1, 26, dtype=np.float32).reshape(2, 13)
    return [*session.run(None, {"x": x}, run_options), session.get_session_options().intra_op_num_threads,
            options.get_session_config_entry("session.intra_op.allow_spinning")]


def io_binding(ort: Any, path: Path) -> list[Any]:
    """Inputs and outputs that stay where they are, by array, by address and by value."""
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x, y = np.linspace(-1, 1, 39, dtype=np.float32).reshape(3, 13), np.zeros((3, 21), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    session.run_with_iobinding(binding)
    first = y.copy()
    x *= 2
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    second = y.copy()
    binding.clear_binding_outputs()
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    value, = binding.get_outputs()
    third, = binding.copy_outputs_to_cpu()
    assert value.shape() == [3, 21] and value.data_type() == "tensor(float)" and value.device_name() == "cpu"
    given = ort.OrtValue.ortvalue_from_numpy(x[:1].copy())
    room = ort.OrtValue.ortvalue_from_shape_and_type([1, 21], np.float32)
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    binding.bind_ortvalue_input("x", given)
    binding.bind_ortvalue_output("y", room)
    session.run_with_iobinding(binding)
    by_value, = session.run_with_ort_values(["y"], {"x": given})
    given.update_inplace(np.zeros((1, 13), np.float32))
    return [first, second, third, value.numpy(), room.numpy(), by_value.numpy(), given.numpy(), value.element_type(),
            room.tensor_size_in_bytes(), room.is_tensor(), np.from_dlpack(third)]


def profiled(ort: Any, path: Path, folder: Path) -> list[Any]:
    """A profile, read back."""
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "times")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    result, = session.run(None, {"x": np.ones((2, 13), np.float32)})
    file = session.end_profiling()
    events = json.loads(Path(file).read_text(encoding="utf-8"))
    runs = [e for e in events if e["cat"] == "Session" and e["name"] == "model_run"]
    kernels = [e for e in events if e["cat"] == "Node" and e["name"].endswith("_kernel_time")]
    assert kernels and all({"ts", "dur", "pid", "tid"} <= e.keys() and "op_name" in e["args"] for e in kernels)
    return [result, len(runs), Path(file).parent == folder]
