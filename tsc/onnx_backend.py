"""The ONNX standard's own Backend interface (`onnx.backend.base`): `prepare`, `run_model`, `run_node`, `supports_device`.

    import tsc.onnx_backend as backend
    outputs = backend.prepare(onnx.load("model.onnx")).run([x])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from tsc.errors import InputError, TscError
from tsc.pipeline import compile
from tsc.runtime.executable import Executable

#: What runs nodes that are given without an opset.
_OPSET = 21


class TscRep(BackendRep):  # type: ignore[misc]
    """A compiled model."""

    def __init__(self, executable: Executable) -> None:
        super().__init__()
        self.executable = executable

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs by number and by name, of inputs in order or by name. Raises as `Executable.run`."""
        names = [spec.name for spec in self.executable.inputs]
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, dict):
            if len(inputs) != len(names):
                raise InputError(f"{len(inputs)} inputs are given, expected {len(names)}: {', '.join(names)}")
            inputs = dict(zip(names, inputs))
        results = self.executable.run(None, inputs)
        made: tuple[Any, ...] = namedtupledict("Outputs", [spec.name for spec in self.executable.outputs])(*results)
        return made


class TscBackend(Backend):  # type: ignore[misc]
    """tsc behind the standard's interface."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether it compiles, which is tried."""
        try:
            cls.prepare(model, device, **kwargs)
        except TscError:
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> TscRep:
        """Compile a model; `kwargs` are those of `tsc.compile`. Raises as that does, InputError for another device."""
        if not cls.supports_device(device):
            raise InputError(f"there is no device '{device}'; the device is 'CPU'")
        return TscRep(compile(model, **kwargs))

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compile a model and run it once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(cls, node: NodeProto, inputs: Sequence[Any], device: str = "CPU", outputs_info: Any = None,
                 **kwargs: Any) -> tuple[Any, ...]:
        """Run one node on arrays, with the operator of `opset_version` (by default of opset 21)."""
        opset = kwargs.pop("opset_version", _OPSET)
        arrays = [np.asarray(x) for x in inputs]
        given = [name for name in node.input if name]
        infos = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
                 for name, x in zip(given, arrays, strict=True)]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", infos, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)], ir_version=10)
        return cls.run_model(onnx.shape_inference.infer_shapes(model), dict(zip(given, arrays)), device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether models run there."""
        return device == "CPU"


is_compatible = TscBackend.is_compatible
prepare = TscBackend.prepare
run_model = TscBackend.run_model
run_node = TscBackend.run_node
supports_device = TscBackend.supports_device
