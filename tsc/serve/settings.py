"""How to serve: the server's options, and what the deployer says of one model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsc.errors import InputError
from tsc.runtime.files import read_regular
from tsc.runtime.signing import Trust

#: Of a file of settings.
_MOST_TEXT = 1 << 16


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where to listen (a port of 0 is any that is free, a `grpc_port` of None is no gRPC), how many `workers` (processes) run
    models with how many `threads` each (None: the cores are shared), and what may be asked of them: bytes of one body and of
    all that are being read, bytes that one run may take beside the weights, requests that wait or run, and seconds until one
    is refused. The folder is looked at again every `poll` seconds; `grace` seconds are left to what runs when all is to end."""

    folder: Path
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int | None = 8001
    workers: int = 1
    threads: int | None = None
    body_bytes: int = 64 << 20
    bodies_bytes: int = 1 << 30
    run_bytes: int = 4 << 30
    requests: int = 256
    deadline: float = 30.0
    poll: float = 1.0
    grace: float = 10.0
    trust: Trust | None = None


@dataclass(frozen=True, slots=True)
class Gathering:
    """How requests of one model are run together: at most so many `requests`, no more than are expected to run within `run`
    seconds, and after `delay` seconds of waiting for others at most."""

    requests: int = 32
    run: float = 0.02
    delay: float = 0.0


def read_gathering(path: Path) -> Gathering:
    """The settings in a TOML file: `requests = 32`, `run_ms = 20`, `delay_ms = 0`. Raises InputError for one that there is not,
    or of another kind."""
    try:
        told = tomllib.loads(read_regular(path, _MOST_TEXT).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' is no TOML ({error}); mend it") from error
    return gathering_of(told, path)


def gathering_of(told: Mapping[str, Any], where: Path) -> Gathering:
    """The same of what a file holds."""
    kinds = {"requests": int, "run_ms": int | float, "delay_ms": int | float}
    for name, value in told.items():
        if name not in kinds:
            raise InputError(f"'{where}' has a setting '{name}'; there are {', '.join(kinds)}")
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise InputError(f"'{where}' has {name} = {value!r}, expected a number")
    usual = Gathering()
    requests = told.get("requests", usual.requests)
    run, delay = (told.get(f"{name}_ms", 1e3 * getattr(usual, name)) for name in ("run", "delay"))
    if requests < 1 or not 0 < run < 1e6 or not 0 <= delay < 1e6:
        raise InputError(f"'{where}' has requests = {requests}, run_ms = {run:g}, delay_ms = {delay:g}: expected 1 request or "
                         "more, some milliseconds to run, and none or more to wait")
    return Gathering(requests, run / 1e3, delay / 1e3)
