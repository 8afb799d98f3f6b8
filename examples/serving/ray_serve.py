"""A model as a deployment of Ray Serve: requests that come together run together, replicas share the weights of a machine.

    TSC_MODEL=model.tscpack serve run --app-dir examples/serving ray_serve:app
    curl localhost:8000/ -d '{"x": [[1.0, 2.0]]}'

Ray gathers requests, of whatever sizes; they run as one, and each gets what it gets alone.
"""

from __future__ import annotations

import os
from contextlib import suppress
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
    async def many(self, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What each of some requests gets, or what is wrong with it."""
        results = self._model.run_many(None, [self._arrays(request) for request in requests], return_exceptions=True)
        names = [spec.name for spec in self._model.outputs]
        return [{"error": str(own)} if isinstance(own, tsc.TscError) else dict(zip(names, (y.tolist() for y in own)))
                for own in results]

    def _arrays(self, request: dict[str, Any]) -> dict[str, Any]:
        """The arrays of a request; what is no array stays as it is, for the model to say so."""
        feeds = dict(request)
        for spec in self._model.inputs:
            with suppress(KeyError, ValueError, TypeError):
                feeds[spec.name] = np.array(feeds[spec.name], spec.numpy)
        return feeds

    async def __call__(self, request: Request) -> JSONResponse:
        """One request over HTTP."""
        result = await self.many(await request.json())
        return JSONResponse(result, 422 if "error" in result else 200)


app = Model.bind(os.environ.get("TSC_MODEL", "model.tscpack"))
