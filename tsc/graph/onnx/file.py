"""From what a user hands in to a ModelProto: a path, bytes or a message, read with care and its names checked.

The file is hostile until it is read: only regular files, no more of them than a model can have, and bounded nesting.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, NodeProto

from tsc.config import DEFAULT_LIMITS, Limits
from tsc.errors import InputError, ModelError, UnsupportedError
from tsc.runtime.files import read_regular

#: What a model may be given as.
Source: TypeAlias = str | os.PathLike[str] | bytes | ModelProto

#: No serialised message is larger.
_MOST_BYTES = 2 << 30


def load(source: Source, limits: Limits) -> tuple[ModelProto, Path | None, str]:
    """The model, the folder that its external data may lie in, and what errors call it.

    Raises InputError for a source of another kind, ModelError for what is no readable model.
    """
    folder = None
    if isinstance(source, ModelProto):
        model, label = source, f"model '{source.graph.name}'"
    elif isinstance(source, bytes | bytearray | memoryview):
        label = "model"
        model = _parse(bytes(source), label)
    elif isinstance(source, str | os.PathLike) and isinstance(name := os.fspath(source), str):
        label, folder = f"'{Path(name).name}'", Path(name).parent
        model = _parse(_read_file(name), label)
    else:
        kind = f"{type(source).__module__}.{type(source).__qualname__}"
        raise InputError(f"the model is given as a {kind}, expected the path of an ONNX file, its bytes or an onnx.ModelProto; "
                         "export it to ONNX first")
    if not model.HasField("graph") or not model.graph.output or not model.opset_import:
        raise ModelError(f"{label} holds no ONNX graph with outputs and an opset; the file is truncated or not an ONNX file")
    _check_names(model, label, limits)
    if model.graph.sparse_initializer:
        names = ", ".join(f"'{s.values.name}'" for s in model.graph.sparse_initializer)
        raise UnsupportedError(f"{label} has sparse initializers ({names}), which are not supported; store them dense")
    return model, folder, label


def metadata(source: Source) -> dict[str, Any]:
    """What a model says of itself: names, descriptions, version and its own properties. Raises as `load`."""
    model, _, _ = load(source, DEFAULT_LIMITS)
    return {"graph_name": model.graph.name, "producer_name": model.producer_name, "domain": model.domain,
            "description": model.doc_string, "graph_description": model.graph.doc_string, "version": model.model_version,
            "custom_metadata_map": {entry.key: entry.value for entry in model.metadata_props}}


def all_nodes(nodes: Sequence[NodeProto], label: str, limits: Limits) -> Iterator[NodeProto]:
    """These nodes and those of subgraphs. Raises UnsupportedError where there are more, or deeper, than `limits` allow."""
    pending, count = [(nodes, 1)], 0
    while pending:
        found, depth = pending.pop()
        count += len(found)
        if count > limits.nodes:
            raise UnsupportedError(f"{label} has more than {limits.nodes} nodes; {allow('nodes')}")
        if depth > limits.nesting:
            raise UnsupportedError(f"{label} has subgraphs more than {limits.nesting} deep; {allow('nesting')}")
        for node in found:
            yield node
            for attribute in node.attribute:
                subgraphs = (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
                pending += [(inner.node, depth + 1) for inner in subgraphs]


def allow(limit: str) -> str:
    """What to do about a limit that a model reaches."""
    return f"allow more with tsc.Options(limits=tsc.Limits({limit}=…))"


def plain_domain(domain: str) -> str:
    """A domain by one name: the standard's own has two."""
    return "" if domain == "ai.onnx" else domain


def _check_names(model: ModelProto, label: str, limits: Limits) -> None:
    """Raise ModelError where a name is not printable text; protobuf hands out what is not UTF-8 as bytes."""
    graph = model.graph
    names: list[Any] = [graph.name, *(o.domain for o in model.opset_import)]
    names += [v.name for v in (*graph.initializer, *graph.input, *graph.output)]
    names += [d.dim_param for v in (*graph.input, *graph.output) for d in v.type.tensor_type.shape.dim]
    names += [name for f in model.functions for name in (f.name, f.domain, f.overload, *f.input, *f.output, *f.attribute)]
    inner = (n for f in model.functions for n in all_nodes(f.node, f"function '{f.name}'", limits))
    for node in (*all_nodes(graph.node, label, limits), *inner):
        names += [node.domain, node.overload, *node.input, *node.output, *(a.name for a in node.attribute)]
        if not (isinstance(node.op_type, str) and node.op_type.isidentifier() and isinstance(node.name, str)):
            raise ModelError(f"{label} has a node whose operator is {node.op_type!r}, called {node.name!r}; "
                             "the file is altered, fetch or export it again")
    wrong = next((n for n in names if not (isinstance(n, str) and n.isprintable())), None)
    if wrong is not None:
        raise ModelError(f"{label} uses {wrong!r} as a name; the file is altered, fetch or export it again")


def _read_file(path: str) -> bytes:
    """The bytes of a regular file. Raises ModelError for anything else: what has no end cannot be read to it."""
    try:
        return read_regular(Path(path), _MOST_BYTES)
    except (OSError, ValueError) as error:
        code = error.errno if isinstance(error, OSError) else None
        reason = "it is no regular file" if code in (errno.EINVAL, errno.EISDIR) else getattr(error, "strerror", error)
        raise ModelError(f"cannot read the model file {path!r}: {reason}; give the path of an ONNX file") from error


def _parse(data: bytes, label: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{label} is not a readable ONNX file ({len(data)} bytes); it is truncated or altered, "
                         "fetch or export it again") from error
    return model
