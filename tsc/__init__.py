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
    from tsc.config import Options
    from tsc.errors import (
        InputError,
        InternalError,
        LaunchError,
        ModelError,
        PackageError,
        ShapeError,
        TscError,
        UnsupportedError,
    )
    from tsc.ops.define import op
    from tsc.pipeline import compile
    from tsc.runtime.load import load
    from tsc.sym import Dim

__version__ = "0.1.0"

__all__ = [
    "Dim", "InputError", "InternalError", "LaunchError", "ModelError", "Options", "PackageError", "ShapeError", "TscError",
    "UnsupportedError", "__version__", "build", "compile", "load", "op", "te",
]

_HOME = {
    "compile": "tsc.pipeline", "build": "tsc.build_te", "op": "tsc.ops.define",
    "load": "tsc.runtime.load", "Dim": "tsc.sym", "Options": "tsc.config", "te": "tsc.te",
    **dict.fromkeys(("TscError", "ModelError", "UnsupportedError", "InputError", "ShapeError", "LaunchError", "PackageError",
                     "InternalError"), "tsc.errors"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tsc' has no attribute '{name}'")
    module = importlib.import_module(_HOME[name])
    value = module if name == "te" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
