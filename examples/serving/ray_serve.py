"""A model as a deployment of Ray Serve: requests that come together run together, replicas share the weights of a machine.

    TSC_MODEL=model.tscpack serve run --app-dir examples/serving ray_serve:app
    curl localhost:8000/ -d '{"x": [1.0, 2.0]}'

Each request is one row of every input. Ray gathers them; rows of different lengths would have to be filled up first, as
`tsc serve` does.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

import tsc


@serve.deployment
class Model:
    """One replica."""

    def __init__(self, path: str) -> None:
        self._model = tsc.load(path, threads=1, weights="shared")

    @serve.batch(max_batch_size=16, batch_wait_timeout_s=0.002)
    async def rows(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What each of some requests gets. They run as one where their rows are of one shape."""
        try:
            return self._run(requests)
        except (tsc.InputError, ValueError, KeyError):
            return [self._alone(request) for request in requests]

    def _run(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        feeds = {spec.name: np.array([request[spec.name] for request in requests], spec.numpy) for spec in self._model.inputs}
        names = [spec.name for spec in self._model.outputs]
        return [dict(zip(names, row)) for row in zip(*(result.tolist() for result in self._model.run(names, feeds)))]

    def _alone(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._run([request])[0]
        except KeyError as error:
            return {"error": f"input {error} is missing"}
        except (tsc.InputError, ValueError) as error:
            return {"error": str(error)}

    async def __call__(self, request: Request) -> JSONResponse:
        """One request over HTTP."""
        result = await self.rows(await request.json())
        return JSONResponse(result, 422 if "error" in result else 200)


app = Model.bind(os.environ.get("TSC_MODEL", "model.tscpack"))
