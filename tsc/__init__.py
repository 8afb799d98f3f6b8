"""tsc: a polyhedral compiler for dynamic-shape ONNX models: compiled once, right at every shape.

    model = tsc.compile("model.onnx")            # once, for every shape
    outputs = model.run(None, {"ids": x})        # as in ONNX Runtime
    model.save("model.tscpack"); model = tsc.load("model.tscpack")

The public names are imported when first used, so that `tsc.load` pulls in no compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tsc import te
    from tsc.build_te import build
    from tsc.config import Limits, Options
    from tsc.errors import (
        InputError,
        InternalError,
        LaunchError,
        ModelError,
        PackageError,
        ShapeError,
        SlowKernelWarning,
        TscError,
        UnsupportedError,
    )
    from tsc.ops.define import op
    from tsc.pipeline import compile
    from tsc.runtime.executable import Executable
    from tsc.runtime.load import load
    from tsc.session.options import (
        ExecutionMode,
        GraphOptimizationLevel,
        RunOptions,
        SessionOptions,
        get_available_providers,
        get_device,
    )
    from tsc.session.session import InferenceSession
    from tsc.session.values import OrtValue
    from tsc.sym import Dim

__version__ = "0.1.0"

__all__ = [
    "Dim", "Executable", "ExecutionMode", "GraphOptimizationLevel", "InferenceSession", "InputError", "InternalError",
    "LaunchError", "Limits", "ModelError", "Options", "OrtValue", "PackageError", "RunOptions", "SessionOptions", "ShapeError",
    "SlowKernelWarning", "TscError", "UnsupportedError", "__version__", "build", "compile", "get_available_providers",
    "get_device", "load", "op", "te",
]

_HOME = {
    "compile": "tsc.pipeline", "build": "tsc.build_te", "op": "tsc.ops.define",
    "load": "tsc.runtime.load", "Executable": "tsc.runtime.executable", "Dim": "tsc.sym", "Options": "tsc.config",
    "Limits": "tsc.config", "te": "tsc.te",
    **dict.fromkeys(("TscError", "ModelError", "UnsupportedError", "InputError", "ShapeError", "LaunchError", "PackageError",
                     "InternalError", "SlowKernelWarning"), "tsc.errors"),
    "InferenceSession": "tsc.session.session", "OrtValue": "tsc.session.values",
    **dict.fromkeys(("SessionOptions", "RunOptions", "GraphOptimizationLevel", "ExecutionMode", "get_available_providers",
                     "get_device"), "tsc.session.options"),
}


if not TYPE_CHECKING:  # so that a checker refuses names that do not exist

    def __getattr__(name: str) -> Any:
        """A public name, imported now. Raises LaunchError where a package that it needs is not installed."""
        if name not in _HOME:
            raise AttributeError(f"module 'tsc' has no attribute '{name}'")
        try:
            module = importlib.import_module(_HOME[name])
        except ModuleNotFoundError as error:
            raise _not_installed(f"tsc.{name}", error) from error
        value = module if name == "te" else getattr(module, name)
        globals()[name] = value
        return value


def _not_installed(what: str, error: ModuleNotFoundError) -> Exception:
    """A LaunchError that says what to install; a module of our own that is missing stays what it is."""
    missing = (error.name or "").partition(".")[0]
    if missing in ("", "tsc"):
        return error
    text = f"{what} needs the package '{missing}', which is not installed; 'pip install tsc-compiler' installs all it needs"
    found: Exception = importlib.import_module("tsc.errors").LaunchError(text)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
