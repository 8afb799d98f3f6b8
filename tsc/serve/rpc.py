"""The Open Inference Protocol over gRPC, on the same Service."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tsc import __version__
from tsc.errors import TscError
from tsc.runtime.memory import Array
from tsc.serve.errors import refusal_of, wrong
from tsc.serve.messages import CALLS, MESSAGES, PACKAGE, SERVICE
from tsc.serve.rest import EXTENSIONS, seconds_of
from tsc.serve.service import Service
from tsc.serve.tensors import BYTES_ALONE, checked_shape, datatype, described, from_bytes, from_json

#: How gRPC says what HTTP has a status for.
CODES = {HTTPStatus.BAD_REQUEST: grpc.StatusCode.INVALID_ARGUMENT, HTTPStatus.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
         HTTPStatus.TOO_MANY_REQUESTS: grpc.StatusCode.RESOURCE_EXHAUSTED,
         HTTPStatus.SERVICE_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
         HTTPStatus.GATEWAY_TIMEOUT: grpc.StatusCode.DEADLINE_EXCEEDED}
#: Which field of InferTensorContents has the elements of a datatype.
_CONTENTS = {"BOOL": "bool_contents", "INT64": "int64_contents", "UINT64": "uint64_contents", "FP32": "fp32_contents",
             "FP64": "fp64_contents", **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
             **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents")}
log = logging.getLogger("tsc.serve")


def server(service: Service) -> grpc.aio.Server:
    """A server that is not started."""
    calls = Calls(service)
    handlers = {name: grpc.unary_unary_rpc_method_handler(
        calls.typed(getattr(calls, name)), request_deserializer=partial(_read, MESSAGES[f"{name}Request"]),
        response_serializer=MESSAGES[f"{name}Response"].SerializeToString) for name in CALLS}
    options = service.options
    found = grpc.aio.server(
        options=[("grpc.max_receive_message_length", options.body_bytes), ("grpc.max_send_message_length", -1),
                 ("grpc.so_reuseport", 0)],
        maximum_concurrent_rpcs=2 * options.requests)
    found.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{PACKAGE}.{SERVICE}", handlers),))
    return found


class Calls:
    """The calls of the protocol, under its names."""

    def __init__(self, service: Service) -> None:
        self._service = service

    @staticmethod
    def typed(call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
        """A call whose refusals are told as gRPC does."""
        async def answered(request: Any, context: Any) -> Any:
            begin, code, reason = time.perf_counter(), grpc.StatusCode.OK, ""
            try:
                if request is None:
                    raise wrong("the message is none of the protocol's")
                return await call(request)
            except TscError as error:
                refusal = refusal_of(error)
                code, reason = CODES.get(refusal.status, grpc.StatusCode.INTERNAL), str(refusal)
            finally:
                if hasattr(request, "model_name"):
                    log.info("request", extra={
                        "model": request.model_name, "version": request.model_version, "id": request.id, "status": code.name,
                        "milliseconds": round(1e3 * (time.perf_counter() - begin), 3), "reason": reason})
            await context.abort(code, reason)
        return answered

    async def ServerLive(self, request: Any) -> Any:
        return MESSAGES["ServerLiveResponse"](live=True)

    async def ServerReady(self, request: Any) -> Any:
        return MESSAGES["ServerReadyResponse"](ready=self._service.ready)

    async def ModelReady(self, request: Any) -> Any:
        self._service.model(request.name, request.version)
        return MESSAGES["ModelReadyResponse"](ready=self._service.ready)

    async def ServerMetadata(self, request: Any) -> Any:
        return MESSAGES["ServerMetadataResponse"](name="tsc", version=__version__, extensions=EXTENSIONS)

    async def ModelMetadata(self, request: Any) -> Any:
        model = self._service.model(request.name, request.version)
        return MESSAGES["ModelMetadataResponse"](
            name=request.name, versions=self._service.versions(request.name), platform="tsc",
            inputs=[described(spec) for spec in model.plan.inputs], outputs=[described(spec) for spec in model.plan.outputs])

    async def RepositoryIndex(self, request: Any) -> Any:
        return MESSAGES["RepositoryIndexResponse"](models=[
            {"name": name, "version": version, "state": state, "reason": reason}
            for name, version, state, reason in self._service.index() if state == "READY" or not request.ready])

    async def ModelInfer(self, request: Any) -> Any:
        model = self._service.model(request.model_name, request.model_version)
        parameters = {name: getattr(given, given.WhichOneof("parameter_choice") or "int64_param")
                      for name, given in request.parameters.items()}
        results, wanted = await self._service.infer(model, feeds_of(request), [output.name for output in request.outputs],
                                                    seconds_of(parameters.get("timeout")))
        specs = [model.plan.outputs[number] for number in wanted]
        return MESSAGES["ModelInferResponse"](
            model_name=model.entry.model, model_version=model.entry.version, id=request.id,
            outputs=[{"name": spec.name, "datatype": datatype(spec.dtype), "shape": array.shape}
                     for spec, array in zip(specs, results)],
            raw_output_contents=[array.tobytes() for array in results])


def _read(message: Any, data: bytes) -> Any:
    """A message of its bytes, None where they are of none: gRPC would call that an error of the server."""
    try:
        return message.FromString(data)
    except DecodeError:
        return None


def feeds_of(request: Any) -> dict[str, Array]:
    """The arrays of a ModelInferRequest, all as bytes or all as numbers. Raises Refusal saying what is wrong with them."""
    raw = list(request.raw_input_contents)
    if raw and len(raw) != len(request.inputs):
        raise wrong(f"the request has {len(request.inputs)} inputs, but {len(raw)} raw_input_contents")
    found: dict[str, Array] = {}
    for number, given in enumerate(request.inputs):
        name, kind, shape = given.name, given.datatype, checked_shape(given.name, list(given.shape))
        if name in found:
            raise wrong(f"input '{name}' is there twice")
        if raw:
            found[name] = from_bytes(name, kind, shape, raw[number])
        elif kind in BYTES_ALONE:
            raise wrong(f"input '{name}' has datatype {kind}; send its bytes as raw_input_contents")
        else:
            field = _CONTENTS.get(kind, "bytes_contents")
            found[name] = from_json(name, kind, shape, list(getattr(given.contents, field)))
    return found
