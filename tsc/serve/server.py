"""`python -m tsc serve`: both protocols over one Service, from the start to the last request."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tsc.errors import LaunchError
from tsc.serve.rest import Rest
from tsc.serve.rpc import server as rpc_server
from tsc.serve.service import Service
from tsc.serve.settings import ServerOptions

#: Connections that wait until they are accepted.
_BACKLOG = 2048
#: Seconds that a connection may be idle.
_KEPT_ALIVE = 75
_PLAIN = frozenset(vars(logging.makeLogRecord({})))


class JsonLines(logging.Formatter):
    """A line of JSON for each record: when, how bad, what, and what came with it."""

    def format(self, record: logging.LogRecord) -> str:
        """As a Formatter does."""
        more = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        return json.dumps({"time": stamp, "level": record.levelname.lower(), "event": record.getMessage(), **more}, default=str)


def log_to_stderr() -> None:
    """Have what this process logs written as JSON, a line a record: requests and models, and of all else what is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.getLogger().addHandler(handler)
    logging.getLogger("tsc.serve").setLevel(logging.INFO)


class _Server(uvicorn.Server):
    """uvicorn's own way with signals ends the process before what is behind it has ended."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's."""
        yield

    def end(self) -> None:
        """Let what is there end; at once, where this is asked for again."""
        self.force_exit, self.should_exit = self.should_exit, True


def _prompt(seconds: float) -> type[HttpToolsProtocol]:
    """The protocol of a connection that is closed where the head of a request does not come within so long. (Its body has a
    limit of its own, and waiting for the next request, too.)"""

    class Prompt(HttpToolsProtocol):
        """uvicorn's own, with a timer that runs while a head is under way."""

        _hurry: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._rest()

        def _wait(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._rest()
            elif self._hurry is None:
                self._hurry = self.loop.call_later(seconds, self.transport.close)

        def _rest(self) -> None:
            if self._hurry is not None:
                self._hurry.cancel()
                self._hurry = None

    return Prompt


async def serve(options: ServerOptions, started: Callable[[int, int | None], None]) -> None:
    """Serve until SIGINT or SIGTERM, which let requests that are there end. `started` is told the ports. Raises LaunchError
    where a port is not to be had, PackageError where the folder cannot be read."""
    service = Service(options)
    await service.start()
    rpc = None
    try:
        listening = _listening(options.host, options.http_port)
        config = uvicorn.Config(Rest(service).application(), http=_prompt(options.deadline), log_config=None, access_log=False,
                                lifespan="off", timeout_keep_alive=_KEPT_ALIVE,
                                timeout_graceful_shutdown=max(1, round(options.grace)))
        grpc_port = None
        if options.grpc_port is not None:
            rpc = rpc_server(service)
            try:
                grpc_port = rpc.add_insecure_port(f"{options.host}:{options.grpc_port}")
            except RuntimeError as error:
                raise _no_port(options.host, options.grpc_port) from error
            await rpc.start()
        started(listening.getsockname()[1], grpc_port)
        server = _Server(config)

        def end() -> None:
            service.ready = False
            server.end()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end)
        await server.serve([listening])
    finally:
        service.ready = False
        if rpc is not None:
            await rpc.stop(options.grace)
        await service.stop()


def _listening(host: str, port: int) -> socket.socket:
    """A socket that is bound. Its protocol is named: without it asyncio leaves Nagle's algorithm on, which holds the second
    part of each answer back until the first one is acknowledged, for 40 ms."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP,
                                                              flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(place)
        found.listen(_BACKLOG)
    except OSError as error:
        raise _no_port(host, port) from error
    return found


def _no_port(host: str, port: int) -> LaunchError:
    return LaunchError(f"port {port} of {host} is not to be had; choose another one")


def run(options: ServerOptions, started: Callable[[int, int | None], None]) -> None:
    """The same, in an event loop of its own."""
    asyncio.run(serve(options, started))
