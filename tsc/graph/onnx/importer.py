"""ONNX model -> Graph: names checked, constants read, functions inlined, dims of the inputs made symbolic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from tsc import ops
from tsc.config import DEFAULT_LIMITS, Limits
from tsc.errors import ModelError, UnsupportedError
from tsc.graph.growing import let_states_be_empty
from tsc.graph.onnx.data import dtype_name, read_attribute, read_tensor
from tsc.graph.onnx.file import Source, all_nodes, load, plain_domain
from tsc.graph.onnx.inline import IsKnown, inline_bodies, inline_functions
from tsc.graph.onnx.input_dims import DeclaredInput, DimsArgument, input_shapes
from tsc.graph.onnx.lists import without_lists
from tsc.graph.onnx.order import in_order
from tsc.graph.onnx.schema import attribute_defaults, check_node, find_schema, newest_of, refuse_unread
from tsc.ir import DeclaredType, Graph, Node, TensorType
from tsc.ops.control import JOIN_SLICES
from tsc.ops.define import CustomOp, custom_node
from tsc.ops.microsoft.domain import IN_STANDARD, MICROSOFT
from tsc.sym import ShapeEnv, SymExpr

#: The opsets whose operators were read against the OpDefs; a newer onnx package knows more, which nobody has looked at.
OLDEST_OPSET, NEWEST_OPSET = 7, 28
#: What exporters write instead of a dim's name, beside signs such as "?".
_NO_NAMES = ("-1", "None")
#: An error that lists nodes names so many of them.
_MOST_NAMED = 20

Custom = Mapping[tuple[str, str], CustomOp]


def import_onnx(source: Source, dims: DimsArgument | None = None, custom: Sequence[CustomOp] = (),
                limits: Limits = DEFAULT_LIMITS) -> tuple[Graph, ShapeEnv]:
    """Read a model: a path, a ModelProto, or its serialised bytes. `dims` declares ranges and shapes (see `input_dims`);
    `custom` are the user's own operators.

    Types are known for inputs and constants only; `infer_shapes` finds the rest. Of what the file says of outputs, element
    types, ranks and fixed sizes are kept to be compared; names are not used, nor what it says of values between: exporters name
    equal dims apart. Raises InputError for a source that is no model, ModelError for one that is not valid, UnsupportedError
    for all operators without an OpDef at once and beyond `limits`, and ShapeError for dims that do not fit the inputs.
    """
    model, folder, label = load(source, limits)
    opset = _opset(model, label)
    known = {(c.domain, c.name): c for c in custom}
    is_known = partial(_supported, custom=known)
    if opset < OLDEST_OPSET:
        opset = _as_of_oldest(model, opset, label, limits)
    _refuse_unknown(model, lambda proto: _domain(proto) != JOIN_SLICES[0], label, limits)
    model = inline_bodies(without_lists(inline_functions(in_order(model), label, limits)), opset, is_known, label, limits)
    _refuse_unknown(model, is_known, label, limits)
    graph, env = _Reader(model.graph, folder, opset, label, known, _opsets(model, label, limits)).read(dims or {})
    let_states_be_empty(graph, env)
    return graph, env


@dataclass(slots=True)
class _Reader:
    """One reading of one GraphProto, the model's or one within it."""

    proto: GraphProto
    folder: Path | None
    opset: int
    label: str
    custom: Custom
    opsets: Mapping[str, int] = field(default_factory=dict)  # of other domains
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    defined: dict[str, str] = field(default_factory=dict)  # value name -> what defines it

    def read(self, dims: DimsArgument) -> tuple[Graph, ShapeEnv]:
        self.read_initializers()
        env = ShapeEnv()
        inputs = [i for i in self.proto.input if i.name not in self.constants]  # older files list initializers as inputs too
        declared = [_declared(i, dims) for i in inputs]
        for value in inputs:
            self._define(value.name, f"input '{value.name}'")
        shapes = input_shapes(declared, dims, env)
        types = {
            i.name: TensorType(dtype_name(i.type.tensor_type.elem_type, f"input '{i.name}'"), shapes[i.name]) for i in inputs}
        nodes = tuple(self.nodes())
        self.check_outputs()
        graph = Graph(self.proto.name, tuple(i.name for i in inputs), tuple(o.name for o in self.proto.output), nodes,
                      types | self.constant_types(), self.constants, {}, self.opset,
                      dict(_declared_types(self.proto.output, sizes=not dims)))
        return graph, env

    def read_initializers(self) -> None:
        for tensor in self.proto.initializer:
            self._define(tensor.name, f"initializer '{tensor.name}'")
            self.constants[tensor.name] = read_tensor(tensor, self.folder, f"initializer '{tensor.name}'")

    def constant_types(self) -> dict[str, TensorType]:
        return {n: TensorType(c.dtype.name, tuple(map(SymExpr.of, c.shape))) for n, c in self.constants.items()}

    def check_outputs(self) -> None:
        for name in (output.name for output in self.proto.output):
            if name not in self.defined:
                raise ModelError(f"{self.label}: output '{name}' is made by no node; the file is altered, export it again")

    def nodes(self) -> Iterator[Node]:
        names = _node_names(self.proto.node)
        made_later = {out for n in self.proto.node for out in n.output if out}
        for proto, name in zip(self.proto.node, names):
            where = f"node '{name}' ({proto.op_type})"
            for value in proto.input:
                if value and value not in self.defined:
                    reason = "is made of what it makes" if value in made_later else "does not exist"
                    raise ModelError(f"{self.label}: {where} reads {value!r}, which {reason}; export it again")
            for value in filter(None, proto.output):
                self._define(value, where)
            attrs = self._attrs(proto, where)
            node = Node(proto.op_type, tuple(proto.input), tuple(proto.output), attrs, name, _domain(proto))
            if (custom := self.custom.get((node.domain, node.op))) is not None:
                yield custom_node(custom, node)
            elif (literal := ops.definition(node).literal) is not None:
                self.constants[node.outputs[0]] = literal(node.attrs, where)
            else:
                yield node

    def _attrs(self, proto: NodeProto, where: str) -> dict[str, Any]:
        for attribute in proto.attribute:
            if attribute.ref_attr_name:
                raise ModelError(f"{where} refers to the attribute '{attribute.ref_attr_name}' of a function, but is in none")
        domain = _domain(proto)
        opset = self.opsets.get(domain, self.opset)
        check_node(proto, domain, opset, where)
        operator = None if (domain, proto.op_type) in self.custom else ops.find(proto.op_type, domain)
        read = self._graph if operator is not None and operator.region else partial(read_attribute, folder=self.folder)
        given = {a.name: read(a, where=where) for a in proto.attribute}
        if operator is None:
            return given
        defaults = attribute_defaults(operator.name, opset, operator.domain)
        refuse_unread(given, operator, defaults, where)
        return {**defaults, **given}

    def _graph(self, proto: AttributeProto, where: str) -> Any:
        """A graph within a node: it sees what is defined so far, and what it defines stays its own."""
        if proto.type != AttributeProto.GRAPH:
            return read_attribute(proto, self.folder, where)
        inner = _Reader(proto.g, self.folder, self.opset, self.label, self.custom, self.opsets, {}, dict(self.defined))
        inner.read_initializers()
        inputs = [i for i in proto.g.input if i.name not in inner.constants]
        for value in inputs:
            inner._define(value.name, f"input '{value.name}' of a graph of {where}")
        nodes, outputs = tuple(inner.nodes()), tuple(o.name for o in proto.g.output)
        inner.check_outputs()
        declared = dict(_declared_types(inputs))
        return Graph(proto.g.name, tuple(i.name for i in inputs), outputs, nodes, inner.constant_types(), inner.constants,
                     opset=self.opset, declared=declared)

    def _define(self, value: str, by: str) -> None:
        if value in self.defined:
            raise ModelError(f"{self.label}: value {value!r} is defined twice, by {self.defined[value]} and by {by}")
        self.defined[value] = by


def _declared_types(values: Iterable[ValueInfoProto], sizes: bool = False) -> Iterator[tuple[str, DeclaredType]]:
    """What a file says of values; fixed `sizes` only where the user gives no dims, which may change them."""
    for value in values:
        tensor = value.type.tensor_type
        if value.type.WhichOneof("value") == "tensor_type" and tensor.elem_type:
            found = [_dim(d) if sizes else None for d in tensor.shape.dim]
            yield value.name, (dtype_name(tensor.elem_type, f"'{value.name}'"), tuple(
                d if isinstance(d, int) else None for d in found) if tensor.HasField("shape") else None)


# -- the file --------------------------------------------------------------------------------------------------

def _opset(model: ModelProto, label: str) -> int:
    versions = {o.version for o in model.opset_import if not plain_domain(o.domain)}
    newest = min(NEWEST_OPSET, onnx.defs.onnx_opset_version())
    if len(versions) > 1:
        raise ModelError(f"{label} imports the standard operators at several opsets ({sorted(versions)}); export it again")
    found = next(iter(versions), None)
    if found is None:
        raise UnsupportedError(f"{label} imports no opset of the standard operators (domain 'ai.onnx'); export it again")
    if found < 1:
        raise ModelError(f"{label} is of opset {found}, which there is not; export it again")
    if found > newest:
        raise UnsupportedError(f"{label} is of opset {found}, but {newest} is the newest that is supported; export it for that")
    return int(found)


def _opsets(model: ModelProto, label: str, limits: Limits) -> dict[str, int]:
    """The opsets of the domains besides the standard's that nodes are of and OpDefs, too. Raises ModelError or UnsupportedError
    for one that there is not, or that is newer than what is known."""
    known = {op.domain for op in ops.all_ops()} - {""}
    used = known & {_domain(node) for node in all_nodes(model.graph.node, label, limits)}
    found = {o.domain: int(o.version) for o in model.opset_import if o.domain in used}
    for domain, version in found.items():
        if version < 1:
            raise ModelError(f"{label} is of opset {version} of '{domain}', which there is not; export it again")
        if version > newest_of(domain):
            raise UnsupportedError(f"{label} is of opset {version} of '{domain}', but {newest_of(domain)} is the newest that "
                                   "is supported; export it for that")
    return found


def _as_of_oldest(model: ModelProto, opset: int, label: str, limits: Limits) -> int:
    """The oldest opset whose operators are known, as which a model of an older one is read where its own mean the same there.
    Raises UnsupportedError for one that does not."""
    for node in all_nodes(model.graph.node, label, limits):
        if plain_domain(node.domain):
            continue
        own, oldest = (find_schema(node.op_type, version) for version in (opset, OLDEST_OPSET))
        if own is not None and (oldest is None or own.since_version != oldest.since_version):
            raise UnsupportedError(f"{label} is of opset {opset}, whose {node.op_type} (node '{node.name}') is not that of "
                                   f"opset {OLDEST_OPSET}, the oldest supported; convert it with onnx.version_converter")
    return OLDEST_OPSET


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
    """A size, a name, or None for a dim without one: exporters write "?" for any dim, so that two of them need not be equal."""
    if proto.WhichOneof("value") == "dim_value" and proto.dim_value >= 0:
        return int(proto.dim_value)
    name = str(proto.dim_param)
    return name if any(map(str.isalnum, name)) and name not in _NO_NAMES else None


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


def _refuse_unknown(model: ModelProto, is_known: IsKnown, label: str, limits: Limits) -> None:
    """Raise UnsupportedError naming every node whose operator has no OpDef."""
    missing = [p for p in all_nodes(model.graph.node, label, limits) if not is_known(p)]
    if missing:
        named = dict(zip(map(id, model.graph.node), _node_names(model.graph.node)))
        by_op: dict[tuple[str, str], list[str]] = {}
        for proto in missing:
            op = ".".join(filter(None, (_domain(proto), proto.op_type)))
            name = f"'{named.get(id(proto)) or (proto.name if proto.name.isprintable() else op)}'"
            by_op.setdefault((op, ops.instead(proto.op_type, _domain(proto))), []).append(name)
        listing = "; ".join(f"{op} at {_some(nodes)}" + (f" ({advice})" if advice else "")
                            for (op, advice), nodes in sorted(by_op.items()))
        raise UnsupportedError(f"{label} uses operators that are not supported: {listing}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")


def _domain(proto: NodeProto) -> str:
    own = plain_domain(proto.domain)
    return MICROSOFT if not own and proto.op_type in IN_STANDARD else own


def _supported(proto: NodeProto, custom: Custom) -> bool:
    """Whether there is an OpDef. The compiler's own primitives are no operators of a model."""
    domain = _domain(proto)
    found = ops.find(proto.op_type, domain)
    is_own = domain == "tsc" and (domain, proto.op_type) != JOIN_SLICES
    return (domain, proto.op_type) in custom or (found is not None and found.domain == domain and not is_own)
