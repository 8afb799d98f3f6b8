"""ONNX model -> Graph: names checked, constants read, functions inlined, dims of the inputs made symbolic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper

from tsc import ops
from tsc.errors import ModelError, UnsupportedError
from tsc.graph.input_dims import DeclaredInput, DimsArgument, input_shapes
from tsc.graph.onnx_data import constant_value, dtype_name, read_attribute, read_tensor
from tsc.graph.onnx_schema import check_node
from tsc.ir import Graph, Node, TensorType
from tsc.ops.define import CustomOp, custom_node
from tsc.sym import ShapeEnv, SymExpr

OLDEST_OPSET = 7


def import_onnx(source: str | Path | bytes | ModelProto, dims: DimsArgument | None = None,
                custom: Sequence[CustomOp] = ()) -> tuple[Graph, ShapeEnv]:
    """Read a model: a path, a ModelProto, or its serialised bytes. `dims` declares ranges and shapes (see `input_dims`);
    `custom` are the user's own operators.

    Types are known for inputs and constants only; `infer_shapes` finds the rest. What the file says of outputs and of values
    between is not used: exporters name equal dims apart. Raises ModelError for a file that is not a valid model,
    UnsupportedError for all operators without an OpDef at once, and ShapeError for dims that do not fit the inputs.
    """
    model, folder, label = _load(source)
    opset = _opset(model, label)
    known = {(c.domain, c.name): c for c in custom}
    model = _inlined(model, opset, label, known.keys())
    return _Reader(model.graph, folder, opset, label, known).read(dims or {})


@dataclass(slots=True)
class _Reader:
    """One reading of one GraphProto."""

    proto: GraphProto
    folder: Path | None
    opset: int
    label: str
    custom: Mapping[tuple[str, str], CustomOp]
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    defined: dict[str, str] = field(default_factory=dict)  # value name -> what defines it

    def read(self, dims: DimsArgument) -> tuple[Graph, ShapeEnv]:
        for tensor in self.proto.initializer:
            self._define(tensor.name, f"initializer '{tensor.name}'")
            self.constants[tensor.name] = read_tensor(tensor, self.folder, f"initializer '{tensor.name}'")
        env = ShapeEnv()
        inputs = [i for i in self.proto.input if i.name not in self.constants]  # older files list initializers as inputs too
        declared = [_declared(i, dims) for i in inputs]
        for value in inputs:
            self._define(value.name, f"input '{value.name}'")
        shapes = input_shapes(declared, dims, env)
        types = {
            i.name: TensorType(dtype_name(i.type.tensor_type.elem_type, f"input '{i.name}'"), shapes[i.name]) for i in inputs}
        nodes = tuple(self._nodes())
        outputs = tuple(o.name for o in self.proto.output)
        for name in outputs:
            if name not in self.defined:
                raise ModelError(f"{self.label}: output '{name}' is made by no node; the file is altered, export it again")
        types |= {n: TensorType(c.dtype.name, tuple(map(SymExpr.of, c.shape))) for n, c in self.constants.items()}
        graph = Graph(self.proto.name, tuple(i.name for i in inputs), outputs, nodes, types, self.constants, {}, self.opset)
        return graph, env

    def _nodes(self) -> Iterator[Node]:
        names = _node_names(self.proto.node)
        made_later = {out for n in self.proto.node for out in n.output if out}
        for proto, name in zip(self.proto.node, names):
            where = f"node '{name}' ({proto.op_type})"
            for value in proto.input:
                if value and value not in self.defined:
                    reason = "is made only later; sort the nodes" if value in made_later else "does not exist; export it again"
                    raise ModelError(f"{self.label}: {where} reads {value!r}, which {reason}")
            for value in filter(None, proto.output):
                self._define(value, where)
            check_node(proto, self.opset, where)
            node = Node(proto.op_type, tuple(proto.input), tuple(proto.output), self._attrs(proto, where), name, _domain(proto))
            if node.op == "Constant" and not node.domain and len(node.outputs) == 1:
                self.constants[node.outputs[0]] = constant_value(node.attrs, where)
            else:
                definition = self.custom.get((node.domain, node.op))
                yield node if definition is None else custom_node(definition, node)

    def _attrs(self, proto: NodeProto, where: str) -> dict[str, Any]:
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                raise ModelError(f"{where} refers to the attribute '{attribute.ref_attr_name}' of a function, but is in none")
        return {a.name: read_attribute(a, self.folder, where) for a in proto.attribute}

    def _define(self, value: str, by: str) -> None:
        if value in self.defined:
            raise ModelError(f"{self.label}: value {value!r} is defined twice, by {self.defined[value]} and by {by}")
        self.defined[value] = by


# -- the file --------------------------------------------------------------------------------------------------

def _load(source: str | Path | bytes | ModelProto) -> tuple[ModelProto, Path | None, str]:
    """The model, the folder that its external data may lie in, and what errors call it."""
    if isinstance(source, ModelProto):
        model, folder, label = source, None, f"model '{source.graph.name}'"
    else:
        path = None if isinstance(source, bytes) else Path(source)
        label, folder = ("model", None) if path is None else (f"'{path.name}'", path.parent)
        model = _parse(source if isinstance(source, bytes) else _read_file(Path(source)), label)
    if not model.HasField("graph") or not model.graph.output or not model.opset_import:
        raise ModelError(f"{label} holds no ONNX graph with outputs and an opset; the file is truncated or not an ONNX file")
    _check_names(model, label)
    if model.graph.sparse_initializer:
        names = ", ".join(f"'{s.values.name}'" for s in model.graph.sparse_initializer)
        raise UnsupportedError(f"{label} has sparse initializers ({names}), which are not supported; store them dense")
    return model, folder, label


def _check_names(model: ModelProto, label: str) -> None:
    """Raise ModelError where a name is not printable text; protobuf hands out what is not UTF-8 as bytes."""
    graph = model.graph
    names: list[Any] = [v.name for v in (*graph.initializer, *graph.input, *graph.output)]
    names += [d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim]
    names += [f.name for f in model.functions] + [f.domain for f in model.functions]
    for node in (*_all_nodes(graph), *(n for f in model.functions for n in f.node)):
        names += [node.domain, *node.input, *node.output, *(a.name for a in node.attribute)]
        if not (isinstance(node.op_type, str) and node.op_type.isidentifier() and isinstance(node.name, str)):
            raise ModelError(f"{label} has a node whose operator is {node.op_type!r}, called {node.name!r}; "
                             "the file is altered, fetch or export it again")
    wrong = next((n for n in names if not (isinstance(n, str) and n.isprintable())), None)
    if wrong is not None:
        raise ModelError(f"{label} uses {wrong!r} as a name; the file is altered, fetch or export it again")


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read the model file '{path}': {error.strerror}") from error


def _parse(data: bytes, label: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{label} is not a readable ONNX file ({len(data)} bytes); it is truncated or altered, "
                         "fetch or export it again") from error
    return model


def _opset(model: ModelProto, label: str) -> int:
    versions = {_plain(o.domain): o.version for o in model.opset_import}
    newest = onnx.defs.onnx_opset_version()
    found = versions.get("")
    if found is None:
        raise UnsupportedError(f"{label} imports no opset of the standard operators (domain 'ai.onnx'); export it again")
    if not OLDEST_OPSET <= found <= newest:
        raise UnsupportedError(f"{label} is of opset {found}, but {OLDEST_OPSET} to {newest} are supported; "
                               "convert it with onnx.version_converter or export it again")
    return int(found)


def _declared(value: ValueInfoProto, dims: Mapping[str, Any]) -> DeclaredInput:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedError(f"input '{value.name}' is {kind or 'untyped'}, but only dense tensors are supported")
    if value.type.tensor_type.HasField("shape"):
        return DeclaredInput(value.name, tuple(map(_dim, value.type.tensor_type.shape.dim)))
    shape = dims.get(value.name)
    if not isinstance(shape, tuple | list):
        raise UnsupportedError(f"input '{value.name}' declares no rank; give its shape through dims={{'{value.name}': (...)}}")
    return DeclaredInput(value.name, (None,) * len(shape))


def _dim(proto: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if proto.WhichOneof("value") == "dim_value" and proto.dim_value >= 0:
        return int(proto.dim_value)
    return str(proto.dim_param) or None


# -- nodes -----------------------------------------------------------------------------------------------------

def _node_names(protos: Iterable[NodeProto]) -> list[str]:
    """The nodes' own names, made up (`Add_12`) where absent and made unique where repeated."""
    protos = list(protos)
    own = [p.name if p.name.isprintable() else "" for p in protos]
    taken, seen = set(own), set[str]()
    result = []
    for k, proto in enumerate(protos):
        name = own[k] or f"{proto.op_type}_{k}"
        while name in seen or (not own[k] and name in taken):
            name = f"{name}_{k}"
        seen.add(name)
        result.append(name)
    return result


def _plain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _domain(proto: NodeProto) -> str:
    return _plain(proto.domain)


def _inlined(model: ModelProto, opset: int, label: str, custom: Collection[tuple[str, str]]) -> ModelProto:
    """The model without calls of its own functions, nor of standard operators that only have a function body.

    Raises UnsupportedError naming every node whose operator has neither an OpDef nor such a body.
    """
    if model.functions:
        _refuse_recursion(model, label)
        model = onnx.inliner.inline_local_functions(model)
    bodies = {p.op_type for p in _all_nodes(model.graph) if not _supported(p, custom) and _has_body(p, opset)}
    if bodies:
        model = _with_bodies(model, bodies, label)
    missing = [p for p in _all_nodes(model.graph) if not _supported(p, custom)]
    if missing:
        named = dict(zip(map(id, model.graph.node), _node_names(model.graph.node)))
        by_op: dict[str, list[str]] = {}
        for proto in missing:
            op = ".".join(filter(None, (_domain(proto), proto.op_type)))
            by_op.setdefault(op, []).append(f"'{proto.name or named.get(id(proto), op)}'")
        listing = "; ".join(f"{op} at {', '.join(nodes)}" for op, nodes in sorted(by_op.items()))
        raise UnsupportedError(f"{label} uses operators that are not supported: {listing}")
    return model


def _with_bodies(model: ModelProto, operators: set[str], label: str) -> ModelProto:
    """`model` with the standard's function bodies of `operators` in place of their nodes."""
    typed = ModelProto()
    typed.CopyFrom(model)
    declared = {i.name for i in (*typed.graph.input, *typed.graph.value_info)}
    typed.graph.value_info.extend(  # a body may depend on the types of its inputs, and initializers count only if declared
        helper.make_tensor_value_info(t.name, t.data_type, tuple(t.dims))
        for t in typed.graph.initializer if t.name not in declared)
    chosen = [(domain, op) for op in sorted(operators) for domain in ("", "ai.onnx")]
    try:
        return onnx.inliner.inline_selected_functions(typed, chosen, inline_schema_functions=True)
    except RuntimeError as error:
        raise UnsupportedError(f"{label} uses operators that are not supported, and whose function bodies cannot be inlined: "
                               f"{', '.join(sorted(operators))}") from error


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """Every node, those of subgraphs included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(subgraph)


def _supported(proto: NodeProto, custom: Collection[tuple[str, str]]) -> bool:
    domain = _domain(proto)
    return (domain, proto.op_type) in custom or ops.find(proto.op_type, domain) is not None or (
        proto.op_type == "Constant" and not domain)


def _has_body(proto: NodeProto, opset: int) -> bool:
    if _domain(proto) or not onnx.defs.has(proto.op_type, opset, ""):
        return False
    schema = onnx.defs.get_schema(proto.op_type, opset, "")
    return bool(schema.has_function or schema.has_context_dependent_function)


def _refuse_recursion(model: ModelProto, label: str) -> None:
    """Raise ModelError for functions that call themselves: inlining would not end."""
    bodies = {(_plain(f.domain), f.name): f for f in model.functions}
    done: set[tuple[str, str]] = set()

    def visit(key: tuple[str, str], path: tuple[tuple[str, str], ...]) -> None:
        if key in path:
            raise ModelError(f"{label}: function '{key[1]}' calls itself, which ONNX does not allow; export it again")
        if key in bodies and key not in done:
            for proto in bodies[key].node:
                visit((_domain(proto), proto.op_type), (*path, key))
            done.add(key)

    for key in bodies:
        visit(key, ())


