"""The Open Inference Protocol over HTTP, with its binary tensor data extension, beside metrics and a page for people.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol says what requests and answers are like.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from tsc import __version__
from tsc.errors import TscError
from tsc.runtime.memory import Array
from tsc.serve.errors import Refusal, busy, refusal_of, wrong
from tsc.serve.model import Served
from tsc.serve.report import report
from tsc.serve.service import Service
from tsc.serve.tensors import BYTES_ALONE, checked_shape, datatype, described, from_bytes, from_json, to_json

EXTENSIONS = ("binary_tensor_data", "model_repository")
#: How long the JSON is that has bytes behind it.
JSON_LENGTH = "Inference-Header-Content-Length"
_PLATFORM = "tsc"
log = logging.getLogger("tsc.serve")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a model: its arrays by name, the outputs it names and which of them as bytes, the id it gave itself, and the
    seconds it wants to wait."""

    feeds: Mapping[str, Array]
    outputs: Mapping[str, bool]
    all_binary: bool
    id: str
    seconds: float | None


def read_request(body: bytes, length: str | None) -> Asked:
    """What a body asks for, of which so many bytes are JSON (None: all). Raises Refusal saying what is wrong with it."""
    count = len(body) if length is None else _whole(length, JSON_LENGTH)
    if count > len(body):
        raise wrong(f"{JSON_LENGTH} is {count}, but the body has {len(body)} bytes")
    try:
        told = json.loads(body[:count])
    except (ValueError, RecursionError) as error:
        raise wrong(f"the request is no JSON ({str(error)[:200]})") from error
    told = _object(told, "the request")
    settings = _object(told.get("parameters", {}), "the request's 'parameters'")
    feeds, rest = {}, memoryview(body)[count:]
    for given in _list(told.get("inputs"), "the request's 'inputs'"):
        item = _object(given, "an input")
        name = _text(item.get("name"), "an input's 'name'")
        if name in feeds:
            raise wrong(f"input '{name}' is there twice")
        shape, own = checked_shape(name, item.get("shape")), _object(item.get("parameters", {}), f"'parameters' of '{name}'")
        if "binary_data_size" in own:
            size = _whole(own["binary_data_size"], f"'binary_data_size' of '{name}'")
            if size > len(rest):
                raise wrong(f"input '{name}' has {size} bytes behind the JSON, but {len(rest)} are left there")
            feeds[name], rest = from_bytes(name, item.get("datatype"), shape, rest[:size]), rest[size:]
        else:
            feeds[name] = from_json(name, item.get("datatype"), shape, item.get("data"))
    if len(rest):
        raise wrong(f"{len(rest)} bytes behind the JSON belong to no input")
    outputs = {}
    all_binary = settings.get("binary_data_output", False) is True
    for given in _list(told.get("outputs", []), "the request's 'outputs'"):
        item = _object(given, "an output")
        own = _object(item.get("parameters", {}), "an output's 'parameters'")
        outputs[_text(item.get("name"), "an output's 'name'")] = own.get("binary_data", all_binary) is True
    given_id = told.get("id", "")
    return Asked(feeds, outputs, all_binary, _text(given_id, "the request's 'id'"), seconds_of(settings.get("timeout")))


def seconds_of(microseconds: Any) -> float | None:
    """How long a request wants to wait, by its parameter `timeout`."""
    if microseconds is None:
        return None
    if type(microseconds) is not int or microseconds <= 0:
        raise wrong(f"the parameter 'timeout' is {microseconds!r}, expected microseconds")
    return microseconds / 1e6


def write_answer(model: Served, asked: Asked, results: list[Array], wanted: tuple[int, ...]) -> tuple[bytes, int | None]:
    """The body of an answer, and how long its JSON is where bytes are behind it."""
    outputs, raw = [], []
    for number, array in zip(wanted, results):
        spec = model.plan.outputs[number]
        item: dict[str, Any] = {"name": spec.name, "datatype": datatype(spec.dtype), "shape": list(array.shape)}
        if asked.outputs.get(spec.name, asked.all_binary):
            raw.append(array.tobytes())
            item["parameters"] = {"binary_data_size": len(raw[-1])}
        elif item["datatype"] in BYTES_ALONE:
            raise wrong(f"output '{spec.name}' has datatype {item['datatype']}, of which JSON has no numbers; ask for bytes")
        else:
            item["data"] = to_json(array)
        outputs.append(item)
    told = {"model_name": model.entry.model, "model_version": model.entry.version, "outputs": outputs}
    text = json.dumps({**told, "id": asked.id} if asked.id else told).encode()
    return b"".join([text, *raw]), len(text) if raw else None


def _whole(value: Any, what: str) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    if type(value) is not int or value < 0:
        raise wrong(f"{what} is {value!r}, expected a whole number")
    return value


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(f"{what} is no object")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong(f"{what} is no list")
    return value


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise wrong(f"{what} is no text")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON may escape one half of a pair
        raise wrong(f"{what} is {value!a}, which has half a character") from error
    return value


# -- the application ---------------------------------------------------------------------------------------------------

class Rest:
    """The endpoints, over a Service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._held = 0  # bytes of bodies that are being read or answered

    def application(self) -> FastAPI:
        """All of it as an ASGI application."""
        app = FastAPI(title="tsc serve", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
        for path in ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"):  # first: each is tried in turn
            app.add_api_route(path, self.infer, methods=["POST"])
        for path, endpoint in self._endpoints():
            app.add_api_route(path, endpoint, methods=["GET"])
        app.add_api_route("/v2/repository/index", self.index, methods=["POST"])
        app.add_exception_handler(HTTPException, _refused)
        app.add_exception_handler(Refusal, _refused)
        return app

    def _endpoints(self) -> Iterator[tuple[str, Callable[..., Awaitable[Response]]]]:
        yield "/v2", self.server
        yield "/v2/", self.server
        yield "/v2/health/live", self.live
        yield "/v2/health/ready", self.is_ready
        for place in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            yield place, self.metadata
            yield f"{place}/ready", self.model_ready
        yield "/metrics", self.metrics
        yield "/status", self.status
        yield "/coverage/{name}", self.coverage
        yield "/", self.page

    async def live(self) -> Response:
        """Whether the server runs."""
        return JSONResponse({"live": True})

    async def is_ready(self) -> Response:
        """Whether it takes requests."""
        ready = self._service.ready
        return JSONResponse({"ready": ready}, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def server(self) -> Response:
        """What the server is."""
        return JSONResponse({"name": "tsc", "version": __version__, "extensions": list(EXTENSIONS)})

    async def model_ready(self, name: str, version: str | None = None) -> Response:
        """Whether a model takes requests."""
        model = self._service.model(name, version)
        return JSONResponse({"name": name, "version": model.entry.version, "ready": self._service.ready})

    async def metadata(self, name: str, version: str | None = None) -> Response:
        """What a model takes and gives."""
        model = self._service.model(name, version)
        return JSONResponse({
            "name": name, "versions": self._service.versions(name), "platform": _PLATFORM,
            "inputs": [described(spec) for spec in model.plan.inputs],
            "outputs": [described(spec) for spec in model.plan.outputs]})

    async def index(self) -> Response:
        """What is in the folder, served or not."""
        return JSONResponse([{"name": name, "version": version, "state": state, "reason": reason}
                             for name, version, state, reason in self._service.index()])

    async def metrics(self) -> Response:
        """For Prometheus."""
        return Response(self._service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def status(self) -> Response:
        """For the page."""
        return JSONResponse(report(self._service))

    async def coverage(self, name: str) -> Response:
        """The report of shape coverage that lies beside a model (`tsc tune --report`)."""
        path = self._service.model(name).coverage
        if path is None:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no report of coverage beside model '{name}'")
        return HTMLResponse(await asyncio.to_thread(path.read_bytes))

    async def page(self) -> Response:
        """For people."""
        return HTMLResponse(files("tsc.serve").joinpath("page.html").read_bytes())

    async def infer(self, request: Request, name: str, version: str | None = None) -> Response:
        """Run a model."""
        begin, status, reason = time.perf_counter(), HTTPStatus.OK, ""
        asked_id = request.headers.get("x-request-id") or uuid.uuid4().hex
        held = _Held(self)
        try:
            body, length = await self._inferred(request, name, version, held)
            headers = {"X-Request-Id": asked_id} | ({} if length is None else {JSON_LENGTH: str(length)})
            media = "application/json" if length is None else "application/octet-stream"
            return Response(body, media_type=media, headers=headers)
        except TscError as error:
            refusal = refusal_of(error)
            status, reason = refusal.status, str(refusal)
            return _said(refusal.status, reason, {"X-Request-Id": asked_id})
        finally:
            held.release()
            log.info("request", extra={"model": name, "version": version or "", "id": asked_id, "status": int(status),
                                       "milliseconds": round(1e3 * (time.perf_counter() - begin), 3), "reason": reason})

    async def _inferred(self, request: Request, name: str, version: str | None, held: _Held) -> tuple[bytes, int | None]:
        model = self._service.model(name, version)
        body = await self._body(request, held)
        asked = read_request(body, request.headers.get(JSON_LENGTH))
        results, wanted = await self._service.infer(model, asked.feeds, list(asked.outputs), asked.seconds)
        return write_answer(model, asked, results, wanted)

    async def _body(self, request: Request, held: _Held) -> bytes:
        """The body, as far as it is no longer than allowed and comes in time."""
        options = self._service.options
        encoding = request.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"bodies in {encoding} are not read; send it as it is")
        told = request.headers.get("content-length", "0")
        if told.isdecimal() and int(told) > options.body_bytes:
            raise _too_long(options.body_bytes)
        chunks, count = [], 0
        try:
            async with asyncio.timeout(options.deadline):
                async for chunk in request.stream():
                    count += len(chunk)
                    if count > options.body_bytes:
                        raise _too_long(options.body_bytes)
                    held.take(len(chunk), options.bodies_bytes)
                    chunks.append(chunk)
        except ClientDisconnect as error:
            raise wrong(f"the body ended after {count} bytes, before it was whole") from error
        except TimeoutError as error:
            raise Refusal(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {options.deadline:g} s") from error
        return b"".join(chunks)


class _Held:
    """The bytes that one request has of all that may be held."""

    def __init__(self, rest: Rest) -> None:
        self._rest, self._bytes = rest, 0

    def take(self, count: int, most: int) -> None:
        if self._rest._held + count > most:
            raise busy("the server holds as many bytes of requests as it may; ask again later")
        self._rest._held += count
        self._bytes += count

    def release(self) -> None:
        self._rest._held -= self._bytes
        self._bytes = 0


def _too_long(most: int) -> Refusal:
    return Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body is longer than the {most} bytes that one may have")


def _said(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    told = message.encode(errors="backslashreplace").decode()
    return JSONResponse({"error": told}, status, dict(headers or {}))


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return _said(error.status, str(error))
    assert isinstance(error, HTTPException)
    return _said(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
