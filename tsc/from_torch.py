"""PyTorch's modules as models, by PyTorch's own exporter to ONNX (`torch.onnx.export(dynamo=True)`), with sizes symbolic.

Needs torch and onnxscript (the extra `torch`); neither is imported before a module is given.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

from onnx import ModelProto

from tsc.errors import InputError, LaunchError, ModelError

#: The opset that the exporter writes as it is.
_OPSET = 18


def is_module(source: object) -> bool:
    """Whether it is a torch.nn.Module; torch is not imported for that."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == "torch.nn.modules.module.Module" for kind in type(source).__mro__)


def exported(module: Any, example_args: Sequence[Any] | None, dynamic_shapes: Any = None) -> ModelProto:
    """A module as an ONNX model, traced with some arguments. `dynamic_shapes` as torch.export takes it (None: every axis of
    every tensor may have any size). Raises InputError without arguments, LaunchError where PyTorch's exporter is not installed,
    and ModelError where it fails or the module writes into what it is given or holds, which a model cannot."""
    if not isinstance(example_args, Sequence) or isinstance(example_args, str):
        raise InputError("a torch module needs example_args, the arguments of a call of it; give a tuple of them")
    torch = find_torch()
    if dynamic_shapes is None:
        dynamic = torch.export.Dim.AUTO
        dynamic_shapes = _as_taken(module, [{axis: dynamic for axis in range(value.dim())}
                                            if isinstance(value, torch.Tensor) else None for value in example_args])
    training = module.training
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(module.eval(), tuple(example_args), dynamo=True, dynamic_shapes=dynamic_shapes,
                                        opset_version=_OPSET, optimize=True, verbose=False)
    except Exception as error:  # whatever the exporter raises is the model's
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = next(iter(str(cause).strip().splitlines()), "")
        raise ModelError(f"PyTorch cannot export the module to ONNX ({type(cause).__name__}: {reason}); export it with "
                         "torch.onnx.export, and give the file") from error
    finally:
        module.train(training)
    told = program.exported_program.graph_signature
    if written := [*told.buffers_to_mutate.values(), *told.user_inputs_to_mutate.values()]:
        raise ModelError(f"the module writes into '{written[0]}', which is lost in a model; call it so that it returns what it "
                         "makes, in eval mode")
    found = program.model_proto
    assert isinstance(found, ModelProto)
    return found


def _as_taken(module: Any, shapes: list[Any]) -> tuple[Any, ...]:
    """Shapes of arguments as torch.export wants them: those of `*args` as one tuple."""
    kinds = [parameter.kind for parameter in signature(module.forward).parameters.values()]
    if Parameter.VAR_POSITIONAL not in kinds:
        return tuple(shapes)
    first = kinds.index(Parameter.VAR_POSITIONAL)
    return (*shapes[:first], tuple(shapes[first:]))


@contextlib.contextmanager
def _quiet() -> Any:
    """Without what the exporter says of its progress."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def find_torch() -> Any:
    """The module torch. Raises LaunchError where it, or what its exporter needs, is not installed."""
    try:
        import_module("onnxscript")
        return import_module("torch")
    except ImportError as error:
        raise LaunchError(f"compiling PyTorch's modules needs {error.name}; install tsc-compiler[torch]") from error
