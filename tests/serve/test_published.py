"""Answers over HTTP are held against what the published OpenAPI document of the protocol asks: which members each has to have,
and of which types (kserve/open-inference-protocol, specification/protocol/open_inference_rest.yaml)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.serve.servers import Server, as_json, sums_request

#: Of each object its members: a type, a list of one, or another object's name; "!" where it has to be there.
SCHEMAS: dict[str, dict[str, Any]] = {
    "metadata_server_response": {"name!": str, "version!": str, "extensions!": [str]},
    "metadata_model_response": {"name!": str, "versions": [str], "platform!": str, "inputs": ["metadata_tensor"],
                                "outputs": ["metadata_tensor"]},
    "metadata_tensor": {"name!": str, "datatype!": str, "shape!": [int]},
    "inference_response": {"model_name!": str, "model_version": str, "id": str, "parameters": dict,
                           "outputs!": ["response_output"]},
    "response_output": {"name!": str, "shape!": [int], "datatype!": str, "parameters": dict, "data!": "tensor_data"},
    "error": {"error!": str}}


def wrong(value: Any, schema: Any, at: str = "") -> list[str]:
    """What is otherwise than a schema says."""
    if isinstance(schema, list):
        return [why for k, item in enumerate(value) for why in wrong(item, schema[0], f"{at}[{k}]")] if isinstance(
            value, list) else [f"{at} is no list"]
    if schema == "tensor_data":
        fits = isinstance(value, list) and all(isinstance(v, bool | int | float | str) or not wrong(v, schema) for v in value)
        return [] if fits else [f"{at} is no data"]
    if isinstance(schema, str):
        members = {name.removesuffix("!"): (kind, name.endswith("!")) for name, kind in SCHEMAS[schema].items()}
        if not isinstance(value, dict):
            return [f"{at} is no object"]
        return [f"{at}.{name} is missing" for name, (_, needed) in members.items() if needed and name not in value] + [
            f"{at}.{name} is unknown" for name in value if name not in members] + [
            why for name, item in value.items() if name in members for why in wrong(item, members[name][0], f"{at}.{name}")]
    return [] if isinstance(value, schema) and not (schema is int and isinstance(value, bool)) else [f"{at} is {value!r}"]


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server(server: Server, path: str) -> None:
    assert wrong(server.get(path), "metadata_server_response") == []


def test_model(server: Server) -> None:
    for path in ("/v2/models/sums", "/v2/models/sums/versions/1", "/v2/models/kinds", "/v2/models/slow"):
        assert wrong(server.get(path), "metadata_model_response") == []


def test_inference(server: Server) -> None:
    for body in (as_json(sums_request(4, rows=2)), as_json(sums_request(1), id="42"),
                 as_json(sums_request(3), outputs=[{"name": "pooled"}])):
        for place in ("sums", "sums/versions/1", "alone"):
            status, text = server.ask("POST", f"/v2/models/{place}/infer", body)
            assert status == 200 and wrong(json.loads(text), "inference_response") == []


def test_errors(server: Server) -> None:
    for method, path, body in (("GET", "/v2/models/none", None), ("POST", "/v2/models/sums/infer", b"{"),
                               ("POST", "/v2/models/sums/infer", as_json({"ids": np.zeros((1, 2), np.int64)}))):
        status, text = server.ask(method, path, body)
        assert status >= 400 and wrong(json.loads(text), "error") == []


@pytest.mark.parametrize("value, schema", [
    ({"name": "x", "version": "1"}, "metadata_server_response"), ({"error": 3}, "error"), ({"error": "x", "more": 1}, "error"),
    ({"name": "x", "datatype": "FP32", "shape": [1.5]}, "metadata_tensor"), ([], "error"),
    ({"name": "x", "datatype": "FP32", "shape": [True]}, "metadata_tensor"),
    ({"model_name": "x", "outputs": [{"name": "y", "shape": [1], "datatype": "FP32", "data": [None]}]}, "inference_response")])
def test_what_is_otherwise_is_found(value: Any, schema: str) -> None:
    assert wrong(value, schema)
