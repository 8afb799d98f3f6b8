"""A Package in NVIDIA's Triton Inference Server, by its Python backend: put this folder, with `1/model.tscpack`, into a model
repository. The image needs `pip install --no-deps tsc-compiler` on top of NumPy, and no compiler.

https://github.com/triton-inference-server/python_backend says what a model has to have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

import tsc

PACKAGE = Path(__file__).with_name("model.tscpack")
_KINDS = {"bool": "TYPE_BOOL", "float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64", "bfloat16": "TYPE_BF16",
          **{f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}}


def _load() -> tsc.Executable:
    return tsc.load(PACKAGE, threads=1, weights="shared")


class TritonPythonModel:
    """What the backend looks for."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """The inputs and outputs, read from the Package: nobody has to write them into config.pbtxt."""
        model, told = _load(), config.as_dict()
        for specs, kind, add in ((model.inputs, "input", config.add_input), (model.outputs, "output", config.add_output)):
            for spec in specs:
                if spec.name not in {item["name"] for item in told[kind]}:
                    sizes = [size.as_int() for size in spec.shape]
                    add({"name": spec.name, "data_type": _KINDS[spec.dtype], "dims": [-1 if n is None else n for n in sizes]})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        self._model = _load()

    def execute(self, requests: list[Any]) -> list[Any]:
        """A response for each request; those that want the same outputs run as one, whatever their sizes."""
        found: list[Any] = [None] * len(requests)
        wanted = [tuple(request.requested_output_names()) for request in requests]
        for names in dict.fromkeys(wanted):
            numbers = [number for number, own in enumerate(wanted) if own == names]
            feeds = [{tensor.name(): tensor.as_numpy() for tensor in requests[k].inputs()} for k in numbers]
            for number, results in zip(numbers, self._model.run_many(list(names), feeds, return_exceptions=True)):
                found[number] = _response(names, results)
        return found


def _response(names: tuple[str, ...], results: Any) -> Any:
    """What one request got: arrays, or what it got wrong."""
    if isinstance(results, tsc.TscError):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(results)))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, result) for name, result in zip(names, results)])
