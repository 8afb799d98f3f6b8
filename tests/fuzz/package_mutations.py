"""How Packages are damaged."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tests.fuzz.package_files import Opened, closed, framed, opened
from tsc.runtime.package import PRELUDE, Weights


@dataclass(frozen=True, slots=True)
class Mutation:
    """A damaged Package. `what` was done; `rehashed`: the hashes fit what is in it now."""

    data: bytes
    what: str
    rehashed: bool
    weights: Weights


def mutate(data: bytes, rng: Random, binaries: Sequence[bytes]) -> Mutation:
    """One mutation: every second one of bytes alone, the others with all hashes computed again. `binaries` are shared objects
    to put in place of the Package's own."""
    weights: Literal["private", "shared"] = rng.choice(["private", "shared"])
    if rng.random() < 0.5:
        damaged, what = _bytes(data, rng)
        return Mutation(damaged, what, False, weights)
    damaged, what = rng.choice((_plan, _plan, _plan, _plan, _header, _text, _weights, _binary, _frame))(data, rng, binaries)
    return Mutation(damaged, what, True, weights)


# -- bytes -----------------------------------------------------------------------------------------------------------

def _bytes(data: bytes, rng: Random) -> tuple[bytes, str]:
    """Bits, runs of bytes, the file's end: anywhere, half of the time near the front, where everything is told."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(min(len(raw), rng.choice((len(raw), 8192, PRELUDE.size)))) if raw else 0
        size = rng.choice((1, 1, 2, 8, 64, 5000))
        match rng.randrange(6):
            case 0:
                raw[at:at + 1] = bytes([raw[at] ^ 1 << rng.randrange(8)]) if raw else b""
            case 1:
                raw[at:at + size] = rng.randbytes(size)
            case 2:
                raw[at:at + size] = bytes([rng.choice((0, 255))]) * size
            case 3:
                del raw[at:at + size]
            case 4:
                raw[at:at] = raw[at:at + size] or b"\0"
            case _:
                del raw[at:]
    return bytes(raw), "bytes"


def _damaged_text(content: bytes, rng: Random) -> bytes:
    return _bytes(content, rng)[0]


# -- JSON ------------------------------------------------------------------------------------------------------------

Path = tuple[Any, ...]

#: What stands where something else should.
_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 63, 64, 65, 4096, 1 << 31, 1 << 40, 1 << 62, 1 << 63, -(1 << 63), 1 << 200, 0.5, -0.0,
    1e308, float("nan"), float("inf"), "", "abort", "exit", "tsc_run", "tsc_stop", "_init", "x", "n", "x" * 5000, "\0",
    "é\ud800", "0", "n*1099511627776", "0 - n", "n // 0", "n % 0", "n // (n - n)", "max()", "max(n)", "min(n, 0)", "n**n",
    "9" * 5000, "1 << 70", "(" * 500 + "n" + ")" * 500, "-" * 3000 + "n", "*".join(["(n + 1)"] * 40),
    "*".join(["(n + batch + seq + h)"] * 9), "max(" * 60 + "n" + ")" * 60, "64*n", "n + 64", "n.real", "__import__('os')",
    [], {}, [[]], [None], {"": None}, [0, None, 1], [1, None, 0],
    "host", "gpu", "cpu", "cuda:0", "bind", "guard", "launch", "copy", "if", "loop", "k", "i", "int64", "99*k", "i + k",
    [0, 1], [2, "int64", "0"], [5, "bool", "0"], [2, 7, 8], {"step": "eval", "name": "e", "value": "n"},
    {"step": "copy", "source": 0, "target": 4, "bytes": "4*n", "after": None},
    "float16", "float64", "object", "bool", "<f4", "input", "output", "constant", "arena", "==", "<=", "!=")


def _places(value: Any, path: Path = ()) -> list[Path]:
    """Every place of a JSON value."""
    found = [path]
    if isinstance(value, dict):
        found += [p for key, inner in value.items() for p in _places(inner, (*path, key))]
    elif isinstance(value, list):
        found += [p for key, inner in enumerate(value) for p in _places(inner, (*path, key))]
    return found


def _at(value: Any, path: Path) -> Any:
    for key in path:
        value = value[key]
    return value


def _put(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    _at(value, path[:-1])[path[-1]] = new
    return value


def mutate_json(value: Any, rng: Random) -> tuple[Any, str]:
    """A copy with one to three changes, and a word on them."""
    value, words = copy.deepcopy(value), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = _places(value)
        path = rng.choice(places)
        change = rng.choice((_replaced, _edited, _edited, _moved, _less, _more))
        value = change(value, path, places, rng)
        words.append(f"{change.__name__[1:]} {'/'.join(map(str, path))[:60]}")
    return value, ", ".join(words)


def _replaced(value: Any, path: Path, places: Sequence[Path], rng: Random) -> Any:
    return _put(value, path, rng.choice(_VALUES))


def _moved(value: Any, path: Path, places: Sequence[Path], rng: Random) -> Any:
    """What stands somewhere else, here too."""
    return _put(value, path, copy.deepcopy(_at(value, rng.choice(places))))


def _less(value: Any, path: Path, places: Sequence[Path], rng: Random) -> Any:
    if path:
        del _at(value, path[:-1])[path[-1]]
    return value


def _more(value: Any, path: Path, places: Sequence[Path], rng: Random) -> Any:
    if path:
        holder, extra = _at(value, path[:-1]), copy.deepcopy(_at(value, path))
        if isinstance(holder, list):
            holder.insert(rng.randint(0, len(holder)), extra)
        else:
            holder[f"{path[-1]}{rng.randrange(3)}"] = extra
    return value


def _edited(value: Any, path: Path, places: Sequence[Path], rng: Random) -> Any:
    """A number or a name in a text, or a number, a little different."""
    old = _at(value, path)
    if isinstance(old, bool) or not isinstance(old, int | str) or old == "":
        return _replaced(value, path, places, rng)
    if isinstance(old, int):
        return _put(value, path, rng.choice((old + 1, old - 1, -old, old * 64, old ^ 1 << rng.randrange(50))))
    tokens = list(re.finditer(r"\d+|[A-Za-z_]\w*|[-+*/%]+", old))
    if not tokens:
        return _put(value, path, old + old)
    found = rng.choice(tokens)
    text = found[0]
    if text.isdecimal() and len(text) > 4000:  # Python reads and writes no longer numbers
        new = text[1:]
    elif text.isdecimal():
        new = str(rng.choice((int(text) + 1, int(text) * 2, int(text) // 2, int(text) + 64, 0, int(text) << 40)))
    elif text[0] in "-+*/%":
        new = rng.choice(("+", "-", "*", "//", "%"))
    else:
        new = rng.choice((rng.choice(tokens)[0], "n", f"{text} + 1", f"2*{text}", f"{text}_"))
    return _put(value, path, old[:found.start()] + new + old[found.end():])


# -- parts, with the hashes computed again ---------------------------------------------------------------------------

def _json_part(name: str, data: bytes, rng: Random) -> tuple[bytes, str]:
    package = opened(data)
    value, what = mutate_json(json.loads(package.parts[name]), rng)
    package.parts[name] = json.dumps(value).encode()
    return closed(package), f"{name}: {what}"


def _plan(data: bytes, rng: Random, binaries: Sequence[bytes]) -> tuple[bytes, str]:
    return _json_part(_plan_part(opened(data)), data, rng)


def _plan_part(package: Opened) -> str:
    return next(name for name in package.parts if name.startswith("plan/"))


def _text(data: bytes, rng: Random, binaries: Sequence[bytes]) -> tuple[bytes, str]:
    """The text of the plan, the log or the header, which may be no JSON any more."""
    package = opened(data)
    name = rng.choice((_plan_part(package), "log", "header"))
    if name == "header":
        length = PRELUDE.unpack(data[:PRELUDE.size])[3]
        end = PRELUDE.size + length
        return framed(_damaged_text(data[PRELUDE.size:end], rng), data[-(-end // 4096) * 4096:]), "text of the header"
    package.parts[name] = rng.choice((_damaged_text(package.parts[name], rng), b"[" * 200_000, b'{"a":' * 100_000, b"", b"nul"))
    return closed(package), f"text of the {name}"


def _header(data: bytes, rng: Random, binaries: Sequence[bytes]) -> tuple[bytes, str]:
    """The header; now and then with places and hashes of parts as the mutation left them."""
    package = opened(data)
    header, what = mutate_json(package.header, rng)
    if not isinstance(header, dict) or rng.random() < 0.4:
        start = -(-(PRELUDE.size + PRELUDE.unpack(data[:PRELUDE.size])[3]) // 4096) * 4096
        return framed(json.dumps(header).encode(), data[start:]), f"header, as it is: {what}"
    return closed(Opened(header, package.parts)), f"header: {what}"


def _weights(data: bytes, rng: Random, binaries: Sequence[bytes]) -> tuple[bytes, str]:
    package = opened(data)
    package.parts["weights"] = _damaged_text(package.parts["weights"], rng)
    return closed(package), "weights"


def _frame(data: bytes, rng: Random, binaries: Sequence[bytes]) -> tuple[bytes, str]:
    """Magic and version, and parts that are gone, doubled, or called something else."""
    package = opened(data)
    name = rng.choice(list(package.parts))
    changes: tuple[Callable[[], Any], ...] = (
        lambda: package.parts.pop(name), lambda: package.parts.update({f"{name}2": package.parts[name]}),
        lambda: package.header["parts"].update({"extra": package.header["parts"][name]}),
        lambda: package.header["parts"].pop(name))
    if rng.random() < 0.3:
        magic, schema = rng.choice((b"TSCPACK\0", b"TSCPACK1")), rng.choice((0, 1, 2, 3, 4, 1 << 31))
        return closed(package, magic, schema), "magic or version"
    rng.choice(changes)()
    return closed(package), f"parts: {name}"


def _binary(data: bytes, rng: Random, binaries: Sequence[bytes]) -> tuple[bytes, str]:
    """Something else instead of the code, which must not run; or that without new hashes."""
    package = opened(data)
    name = next(part for part in package.parts if part.startswith("module/"))
    own, other = package.parts[name], rng.choice(binaries)
    number = rng.randrange(6)
    if number == 5:  # the hash of the old one
        package.parts[name] = (other + bytes(len(own)))[:len(own)]
        start = data.index(own)
        return data[:start] + package.parts[name] + data[start + len(own):], "another binary with the old one's hash"
    package.parts[name] = (b"", b"\x7fELF", other, own[:rng.randrange(64)], other[:rng.randrange(len(other))])[number]
    return closed(package), f"binary {number}"
