"""A model in an application of your own, where `tsc serve` is too much.

    TSC_MODEL=model.tscpack uvicorn --app-dir examples/serving fastapi_app:app
    curl localhost:8000/ -H 'content-type: application/json' -d '{"x": [[1.0, 2.0]]}'
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException

import tsc

model = tsc.load(os.environ["TSC_MODEL"])
model.prepare()  # memory for the largest request, where the dims have upper ends: else give sizes, or leave it out
app = FastAPI(title="a model of tsc")


@app.get("/")
def inputs() -> dict[str, str]:
    return {spec.name: f"{spec.dtype}[{', '.join(map(str, spec.shape))}]" for spec in model.inputs}


@app.post("/")
def run(feeds: dict[str, Any]) -> dict[str, Any]:  # in a thread of the pool: runs of many threads share one model
    dtypes = {spec.name: spec.numpy for spec in model.inputs}
    try:
        results = model.run(None, {name: np.array(data, dtypes.get(name)) for name, data in feeds.items()})
    except (tsc.InputError, ValueError) as error:  # what a request got wrong, in one sentence
        raise HTTPException(422, str(error)) from error
    return {spec.name: result.tolist() for spec, result in zip(model.outputs, results)}
