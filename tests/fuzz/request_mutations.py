"""Requests to a server, damaged at random: their JSON, their bytes, what they say of themselves, and how they are sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

#: What takes the place of something in the JSON of a request.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 0.5, -0.0, 1e308, float("nan"), float("inf"), 1 << 31, 1 << 62, 1 << 63, -(1 << 63),
    1 << 64, 1 << 200, "", "ids", "INT64", "FP16", "BYTES", "\0", "\ud800", "x" * 5000, [], [[]], [1, [2]], {},
    {"name": "ids"}, [0] * 9000, [1, 1 << 40], [0, 1 << 60], [1 << 33, 1 << 33], [-1, 3], "../../x", [None], ["a"],
    {"binary_data_size": 1 << 62})
_SIZES = ("-1", "0", "1", "7", "1e3", "99999999", str(1 << 62), str(1 << 70), "x", "")


@dataclass(frozen=True, slots=True)
class Sent:
    """What goes over the wire: parts, between which a moment passes; whether nothing follows; whether the head is HTTP as it
    should be, so that the answer has to be one of the protocol's."""

    parts: tuple[bytes, ...]
    ends: bool
    is_http: bool


def good(rng: Random) -> dict[str, Any]:
    """A request that is right, as JSON alone."""
    rows, length = rng.randint(1, 3), rng.randint(1, 9)
    data = [rng.randrange(50) for _ in range(rows * length)]
    return {"id": "a", "inputs": [
        {"name": "ids", "datatype": "INT64", "shape": [rows, length], "data": data},
        {"name": "mask", "datatype": "INT64", "shape": [rows, length], "data": [1] * len(data)}],
        "outputs": [{"name": "pooled", "parameters": {"binary_data": rng.random() < 0.5}}],
        "parameters": {"binary_data_output": rng.random() < 0.5}}


def behind(request: dict[str, Any]) -> bytes:
    """The same with its data as bytes behind it: they are taken out of the request and returned."""
    raw = b""
    for item in request["inputs"]:
        own = np.array(item.pop("data"), np.int64).tobytes()
        item["parameters"] = {"binary_data_size": len(own)}
        raw += own
    return raw


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a JSON value: what holds it, and where."""
    found: list[tuple[Any, Any]] = []
    keys: Sequence[Any] = list(value) if isinstance(value, dict) else range(20)[:len(value)] if isinstance(value, list) else ()
    for key in keys:
        found += [(value, key), *_places(value[key])]
    return found


def damage(request: dict[str, Any], rng: Random) -> None:
    """Change one to three places of a request."""
    for _ in range(rng.randint(1, 3)):
        places = _places(request)
        if not places:
            return
        holder, key = rng.choice(places)
        match rng.randrange(5):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, deepcopy(holder[key]))
            case 2:
                deep: Any = 1
                for _ in range(rng.choice((3, 100, 250))):
                    deep = [deep]
                holder[key] = deep
            case _:
                holder[key] = deepcopy(rng.choice(ODD))


def bitten(data: bytes, rng: Random) -> bytes:
    """Some bytes that are others, more or fewer."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(4):
            case 0:
                del found[at:at + rng.randint(1, 30)]
            case 1:
                found[at:at] = rng.randbytes(rng.randint(1, 30))
            case _ if at < len(found):
                found[at] = rng.randrange(256)
    return bytes(found)


def head(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode("utf-8", "surrogatepass")


def _chunks(body: bytes, rng: Random) -> bytes:
    """The body in chunks, of which one may say that it has another length."""
    cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randint(0, 4)))
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)]) if b > a]
    wrong = rng.randrange(len(parts)) if parts and rng.random() < 0.3 else -1
    sizes = [len(part) + 5 * (k == wrong) for k, part in enumerate(parts)]
    return b"".join(f"{size:x}\r\n".encode() + part + b"\r\n" for size, part in zip(sizes, parts)) + b"0\r\n\r\n"


def mutated(rng: Random, path: str = "/v2/models/sums/infer") -> Sent:
    """One request, wrong in some way or, now and then, by luck right."""
    request = good(rng)
    raw = behind(request) if rng.random() < 0.5 else b""
    if rng.random() < 0.6:
        damage(request, rng)
    text = json.dumps(request).encode()
    lines = [f"Inference-Header-Content-Length: {len(text)}"] if raw else []
    body = text + raw
    ways: list[Callable[[], Sent]] = [
        lambda: whole(bitten(body, rng)), lambda: whole(body), lambda: whole(b'{"inputs":[' * rng.choice((3, 20_000))),
        lambda: whole(body[:rng.randrange(len(body) + 1)]),
        lambda: whole(body, f"Inference-Header-Content-Length: {rng.choice(_SIZES)}"),
        lambda: Sent((head(path, *lines, "Transfer-Encoding: chunked") + _chunks(body, rng),), True, False),
        lambda: Sent((head(path, *lines, f"Content-Length: {len(body)}") + body[:-3],), True, False),
        lambda: Sent((bitten(head(path, *lines, f"Content-Length: {len(body)}") + body, rng),), True, False),
        lambda: Sent((head(path, *lines, f"Content-Length: {rng.choice(_SIZES)}") + body,), True, False),
        lambda: Sent((head(path, *lines, f"Content-Length: {len(body)}") + body[:5], body[5:40], body[40:]), False, True),
        lambda: Sent((head(bitten(path.encode(), rng).decode("latin-1"), *lines, f"Content-Length: {len(body)}") + body,), True,
                     False)]

    def whole(data: bytes, *others: str) -> Sent:
        return Sent((head(path, *(others or lines), f"Content-Length: {len(data)}") + data,), False, True)

    return rng.choice(ways)()
