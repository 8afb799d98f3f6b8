"""The Open Inference Protocol over HTTP: by its published client, and by hand where that would not write such a request."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import tsc
from tests.serve.servers import Server, as_json, sums_request

client = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]")
NEAR = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture
def triton(server: Server) -> Any:
    return client.InferenceServerClient(f"127.0.0.1:{server.port}")


def inputs(feeds: dict[str, np.ndarray], binary: bool) -> list[Any]:
    found = []
    for name, array in feeds.items():
        found.append(client.InferInput(name, array.shape, client.np_to_triton_dtype(array.dtype)))
        found[-1].set_data_from_numpy(np.ascontiguousarray(array), binary_data=binary)
    return found


def test_health_and_metadata(triton: Any, server: Server) -> None:
    assert triton.is_server_live() and triton.is_server_ready() and triton.is_model_ready("sums")
    assert not triton.is_model_ready("nothing") and not triton.is_model_ready("sums", "2")
    told = triton.get_server_metadata()
    assert told["name"] == "tsc" and told["version"] == tsc.__version__ and "binary_tensor_data" in told["extensions"]
    assert triton.get_model_metadata("sums") == {
        "name": "sums", "versions": ["1"], "platform": "tsc",
        "inputs": [{"name": name, "datatype": "INT64", "shape": [-1, -1]} for name in ("ids", "mask")],
        "outputs": [{"name": "tokens", "datatype": "FP32", "shape": [-1, -1, 8]},
                    {"name": "pooled", "datatype": "FP32", "shape": [-1, 8]}]}
    assert triton.get_model_metadata("kinds")["versions"] == ["2", "3"]
    versions = (("sums", "1"), ("alone", "1"), ("slow", "1"), ("kinds", "2"), ("kinds", "3"))
    assert {(m["name"], m["version"], m["state"]) for m in triton.get_model_repository_index()} == {
        (*place, "READY") for place in versions}
    assert sorted(server.get("/openapi.json")["paths"])[:3] == ["/", "/coverage/{name}", "/metrics"]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("rows, length", [(1, 1), (3, 7), (2, 64), (1, 0), (0, 5)])
@pytest.mark.parametrize("name", ["sums", "alone"])
def test_results(triton: Any, models: dict[str, tsc.Executable], name: str, rows: int, length: int, binary: bool) -> None:
    feeds = sums_request(length, rows=rows)
    wanted = [client.InferRequestedOutput(output, binary_data=binary) for output in ("pooled", "tokens")]
    try:
        pooled, tokens = models[name].run(["pooled", "tokens"], feeds)
    except tsc.ShapeError as error:  # a size of 0 where the model has none
        with pytest.raises(client.InferenceServerException) as refused:
            triton.infer(name, inputs(feeds, binary), outputs=wanted)
        assert str(error) in str(refused.value)
        return
    found = triton.infer(name, inputs(feeds, binary), outputs=wanted, request_id="mine")
    np.testing.assert_array_equal(found.as_numpy("pooled"), pooled)
    np.testing.assert_array_equal(found.as_numpy("tokens"), tokens)
    assert found.get_response()["id"] == "mine" and found.get_response()["model_version"] == "1"
    everything = triton.infer(name, inputs(feeds, binary)).get_response()["outputs"]
    assert [output["name"] for output in everything] == ["tokens", "pooled"]


def test_every_type(triton: Any, server: Server) -> None:
    rng = np.random.default_rng(0)
    feeds = {}
    for spec in triton.get_model_metadata("kinds")["inputs"]:
        dtype = client.triton_to_np_dtype(spec["datatype"])
        size = np.dtype(dtype).itemsize
        values = rng.random(5) < 0.5 if spec["datatype"] == "BOOL" else np.frombuffer(rng.bytes(5 * size), dtype)
        feeds[spec["name"]] = np.nan_to_num(values.astype(dtype)) if np.dtype(dtype).kind == "f" else values.astype(dtype)
    assert len(feeds) == 12
    found = triton.infer("kinds", inputs(feeds, True))
    for name, array in feeds.items():
        np.testing.assert_array_equal(found.as_numpy(f"y{name[1:]}"), array)
    small = {name: array for name, array in feeds.items() if array.dtype != np.float16}
    outputs = [client.InferRequestedOutput(f"y{name[1:]}", binary_data=False) for name in small]
    found = triton.infer("kinds", [i for i, name in zip(inputs(feeds, True), feeds)], outputs=outputs)
    for name, array in small.items():
        np.testing.assert_array_equal(found.as_numpy(f"y{name[1:]}"), array)
    status, why = server.refused("POST", "/v2/models/kinds/infer", {"inputs": [
        {"name": "x_float16", "datatype": "FP16", "shape": [1], "data": [1.0]}]})
    assert status == 400 and "FP16" in why


def test_numbers_that_are_no_numbers(server: Server) -> None:
    """What JSON has no word for is written as Python and Triton do."""
    body = as_json({"trips": np.array(0), "x": np.zeros(3, np.float32)})
    body["inputs"][1]["data"] = [float("nan"), float("inf"), 1e300]
    status, text = server.ask("POST", "/v2/models/slow/infer", body)
    assert status == 200 and json.loads(text)["outputs"][0]["data"][1:] == [float("inf"), float("inf")]


def test_nested_data(server: Server, models: dict[str, tsc.Executable]) -> None:
    feeds = sums_request(4, rows=2)
    body = as_json(feeds)
    for item, array in zip(body["inputs"], feeds.values()):
        item["data"] = array.tolist()
    status, text = server.ask("POST", "/v2/models/sums/versions/1/infer", body)
    assert status == 200
    np.testing.assert_allclose(json.loads(text)["outputs"][1]["data"], models["sums"].run(["pooled"], feeds)[0].ravel(), **NEAR)


_GOOD = as_json(sums_request(3))


def changed(**items: Any) -> dict[str, Any]:
    """A request whose first input is otherwise."""
    first = {name: value for name, value in {**_GOOD["inputs"][0], **items}.items() if value is not None}
    return {"inputs": [first, _GOOD["inputs"][1]]}


@pytest.mark.parametrize("body, why", [
    (b"", "no JSON"), (b"{", "no JSON"), (b"\xff", "no JSON"), ([], "no object"), ({}, "'inputs' is no list"),
    ({"inputs": [1]}, "an input is no object"), ({"inputs": [{}]}, "'name' is no text"),
    (changed(name="\ud800"), "half a character"), (_GOOD | {"id": "a\udfff"}, "half a character"),
    (_GOOD | {"outputs": [{"name": "\udc80"}]}, "half a character"), (changed(datatype="\ud800"), "datatype '\\ud800'"),
    (changed(data=None), "no list as its data"),
    (changed(shape=[1, 4]), "3 elements, expected 4"), (changed(shape=[3]), "rank 1"),
    (changed(shape=[-1, 3]), "no shape"),
    (changed(shape=[1, True]), "no shape"), (changed(shape="13"), "no shape"),
    (changed(shape=[1] * 40), "no shape"),
    (changed(shape=[1, 1 << 70]), "no shape"), (changed(shape=[1 << 40, 1 << 40]), "expected"),
    (changed(datatype="INT65"), "datatype 'INT65'"), (changed(datatype="INT32"), "int32"),
    (changed(datatype=[]), "datatype []"),
    (changed(datatype="BYTES"), "datatype 'BYTES'"), (changed(data=[1, 2, "3"]), "no INT64"),
    (changed(data=[1, 2, 3.5]), "no INT64"), (changed(data=[1, 2, 1 << 70]), "no INT64"),
    (changed(data=[1, 2, None]), "no INT64"), (changed(data=[[1, 2], [3]]), "no tensor"),
    (changed(data=[1, 2, 99]), "out of bounds"),
    (changed(name="other"), "input 'ids' is missing"),
    (changed(name="mask"), "there twice"), (changed(parameters=3), "no object"),
    (changed(parameters={"binary_data_size": 24}), "24 bytes behind the JSON"),
    (changed(parameters={"binary_data_size": -1}), "expected a whole number"),
    ({**_GOOD, "outputs": [{"name": "none"}]}, "no output 'none'"), ({**_GOOD, "outputs": 3}, "no list"),
    ({**_GOOD, "id": 3}, "no text"), ({**_GOOD, "parameters": {"timeout": "soon"}}, "'timeout'")])
def test_what_is_wrong_is_said(server: Server, body: Any, why: str) -> None:
    status, told = server.refused("POST", "/v2/models/sums/infer", body)
    assert status == 400 and why in told


def test_bytes_behind_the_json(server: Server) -> None:
    head = json.dumps(changed(data=None, parameters={"binary_data_size": 24})).encode()
    for raw, length, why in ((b"", None, "24 bytes behind"), (bytes(24), None, "no JSON"), (bytes(23), len(head), "24 bytes"),
                             (bytes(25), len(head), "1 bytes behind the JSON belong to no input"),
                             (bytes(24), len(head) + 99, "but the body has"), (bytes(24), -1, "whole number"),
                             (bytes(24), "x", "whole number")):
        headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
        status, told = server.refused("POST", "/v2/models/sums/infer", head + raw, headers)
        assert status == 400 and why in told
    right = {"Inference-Header-Content-Length": str(len(head))}
    assert server.ask("POST", "/v2/models/sums/infer", head + bytes(24), right)[0] == 200
    wrong = {"inputs": [{"name": "x_bool", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}}]}
    head = json.dumps(wrong).encode()
    status, told = server.refused("POST", "/v2/models/kinds/infer", head + b"\x01\x02",
                                  {"Inference-Header-Content-Length": str(len(head))})
    assert status == 400 and "a byte of 2" in told


def test_places_that_there_are_not(server: Server) -> None:
    for method, path, expected in (("GET", "/v2/models/none", 404), ("GET", "/v2/models/sums/versions/7", 404),
                                   ("GET", "/nothing", 404), ("POST", "/v2/models/none/infer", 404),
                                   ("GET", "/v2/models/sums/infer", 405),
                                   ("POST", "/v2", 405), ("GET", "/coverage/sums", 404),
                                   ("GET", "/v2/models/../../etc/ready", 404)):
        assert server.refused(method, path, b"{}" if method == "POST" else None)[0] == expected
    status, why = server.refused("POST", "/v2/models/sums/infer", b"x", {"Content-Encoding": "gzip"})
    assert status == 415 and "gzip" in why


def test_metrics_status_and_log(server: Server, triton: Any) -> None:
    feeds = sums_request(11)
    before = server.get("/status")["models"]
    triton.infer("sums", inputs(feeds, True), headers={"X-Request-Id": "by its header"})
    after = {(m["name"], m["version"]): m for m in server.get("/status")["models"]}
    own = next(m for m in before if m["name"] == "sums")
    assert after["sums", "1"]["requests"] == own["requests"] + 1 and after["sums", "1"]["milliseconds"]["50"] > 0
    assert after["sums", "1"]["together"] == 32 and after["alone", "1"]["together"] == after["slow", "1"]["together"] == 1
    text = server.ask("GET", "/metrics")[1].decode()
    assert 'tsc_requests_total{model="sums",status="200",version="1"}' in text and 'tsc_shapes{model="sums"' in text
    logged = [record for record in server.records() if record.get("id") == "by its header"]
    assert len(logged) == 1 and logged[0]["status"] == 200 and logged[0]["model"] == "sums" and logged[0]["milliseconds"] > 0
