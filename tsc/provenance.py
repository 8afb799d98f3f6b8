"""What a Package says of how it was made: the model's and the records' digests, options and versions; and by which compiler."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path

from google.protobuf.message import EncodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from tsc.config import Options
from tsc.graph.onnx.file import Source
from tsc.kernels import Workshop
from tsc.threads import submitted

#: Options that say how a compile goes on, and not what it makes.
_BESIDE = frozenset({"cache_dir", "jobs", "use_cache", "progress", "limits", "records"})
_CHUNK = 1 << 22


@contextmanager
def provenance(source: Source, shop: Workshop) -> Iterator[Future[dict[str, str]]]:
    """What can be said of a compile but for its compiler, told beside it: a large model's digest takes a while."""
    with ThreadPoolExecutor(1) as pool:
        yield submitted(pool, _told, source, shop)


def _told(source: Source, shop: Workshop) -> dict[str, str]:
    options = shop.options
    records = _digest_of_file(options.records) if options.records is not None else ""
    found = {"model": _digest(source), "options": _options(options), "versions": _versions(), "records": records}
    return {name: value for name, value in found.items() if value}


@cache
def _versions() -> str:
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in ("islpy", "onnx"))


def _options(options: Options) -> str:
    """Those that are not as they are by default."""
    default = Options()
    return " ".join(f"{f.name}={getattr(options, f.name)}" for f in fields(Options)
                    if f.name not in _BESIDE and getattr(options, f.name) != getattr(default, f.name))


def _digest(source: Source) -> str:
    """Of the model's own bytes (not of external data); "" of what is none, which others say."""
    if isinstance(source, ModelProto):
        try:
            return f"sha256 {hashlib.sha256(source.SerializeToString(deterministic=True)).hexdigest()}"
        except (ValueError, EncodeError):  # beyond 2 GB it has no bytes of its own
            return ""
    if isinstance(source, str | os.PathLike):
        return _digest_of_file(Path(source))
    return f"sha256 {hashlib.sha256(source).hexdigest()}" if isinstance(source, bytes | bytearray | memoryview) else ""


def _digest_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        if not path.is_file():
            return ""
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except (OSError, ValueError):
        return ""
    return f"sha256 {digest.hexdigest()}"
