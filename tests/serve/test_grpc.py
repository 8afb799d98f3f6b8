"""The same over gRPC, by its published client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tsc
from tests.serve.servers import Server, sums_request
from tsc.serve.messages import FIELDS, MESSAGES

client = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient[grpc]")
published = pytest.importorskip("tritonclient.grpc.service_pb2")


@pytest.fixture
def triton(server: Server) -> Any:
    return client.InferenceServerClient(f"127.0.0.1:{server.grpc}")


def inputs(feeds: dict[str, np.ndarray]) -> list[Any]:
    found = []
    for name, array in feeds.items():
        found.append(client.InferInput(name, array.shape, "INT64"))
        found[-1].set_data_from_numpy(array)
    return found


def test_the_messages_are_the_published_ones() -> None:
    """Each field has the name, number, type and label that the protocol's own file gives it."""
    compared = 0
    for path, fields in FIELDS.items():
        theirs = published.DESCRIPTOR.pool.FindMessageTypeByName(f"inference.{path}")
        ours = MESSAGES[path].DESCRIPTOR
        for name in fields:
            one, other = ours.fields_by_name[name], theirs.fields_by_name[name]
            assert (one.number, one.type) == (other.number, other.type), (path, name)
            assert (one.containing_oneof is None) == (other.containing_oneof is None)
            assert getattr(one.message_type, "full_name", "") == getattr(other.message_type, "full_name", "")
            compared += 1
    assert compared > 50


def test_health_and_metadata(triton: Any) -> None:
    assert triton.is_server_live() and triton.is_server_ready() and triton.is_model_ready("sums")
    assert triton.get_server_metadata().name == "tsc"
    told = triton.get_model_metadata("sums")
    assert [(i.name, i.datatype, list(i.shape)) for i in told.inputs] == [(n, "INT64", [-1, -1]) for n in ("ids", "mask")]
    assert [(o.name, list(o.shape)) for o in told.outputs] == [("tokens", [-1, -1, 8]), ("pooled", [-1, 8])]
    assert {m.name for m in triton.get_model_repository_index().models} == {"sums", "alone", "slow", "kinds"}


@pytest.mark.parametrize("name", ["sums", "alone"])
def test_results(triton: Any, models: dict[str, tsc.Executable], name: str) -> None:
    for rows, length in ((1, 1), (3, 7), (2, 64)):
        feeds = sums_request(length, rows=rows)
        found = triton.infer(name, inputs(feeds), outputs=[client.InferRequestedOutput("pooled")], request_id="mine")
        np.testing.assert_array_equal(found.as_numpy("pooled"), models[name].run(["pooled"], feeds)[0])
        assert found.as_numpy("tokens") is None and found.get_response().id == "mine"


def test_numbers_in_place_of_bytes(server: Server, models: dict[str, tsc.Executable]) -> None:
    grpc = pytest.importorskip("grpc")
    feeds = sums_request(5)
    request = MESSAGES["ModelInferRequest"](model_name="sums", inputs=[
        {"name": name, "datatype": "INT64", "shape": array.shape, "contents": {"int64_contents": array.ravel().tolist()}}
        for name, array in feeds.items()])
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer",
                                   request_serializer=MESSAGES["ModelInferRequest"].SerializeToString,
                                   response_deserializer=MESSAGES["ModelInferResponse"].FromString)
        found = call(request)
        np.testing.assert_array_equal(np.frombuffer(found.raw_output_contents[1], np.float32),
                                      models["sums"].run(["pooled"], feeds)[0].ravel())
        request.raw_input_contents.append(b"")
        with pytest.raises(grpc.RpcError) as refused:
            call(request)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "raw_input_contents" in refused.value.details()


def test_what_is_wrong_is_said(triton: Any) -> None:
    for name, feeds, code, why in (
            ("none", sums_request(3), "NOT_FOUND", "there is no model 'none'"),
            ("sums", {"ids": sums_request(3)["ids"]}, "INVALID_ARGUMENT", "input 'mask' is missing"),
            ("sums", sums_request(3) | {"mask": np.ones((1, 4), np.int64)}, "INVALID_ARGUMENT", "input 'mask' has size 4"),
            ("sums", sums_request(3) | {"ids": np.full((1, 3), 99)}, "INVALID_ARGUMENT", "out of bounds")):
        with pytest.raises(client.InferenceServerException) as refused:
            triton.infer(name, inputs(feeds))
        assert code in refused.value.status() and why in refused.value.message()
