"""Damage to a model file: to its bytes, or to one thing after the other of what it says."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from tsc.ops import all_ops

NUMBERS = (0, 1, -1, 2, 3, 7, 17, 64, 255, 4096, 65537, 2**31 - 1, 2**31, -2**31, 2**40, 2**62, 2**63 - 1, -2**63)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"))
#: No tensor of strings among them, which protobuf keeps elsewhere.
DTYPES = (0, 1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 16, 17, 21, 22, 99)
NAMES = ("", "x", "y", "y/shape", "x.acc", "a b", "Ünïcode", "\n", "?", "if", "__proto__", "x" * 3000, "0", "-1", "max", "s0")
OPERATORS = sorted({op.name for op in all_ops()} | {
    "If", "Loop", "Scan", "NonZero", "QuantizeLinear", "HannWindow", "Attention", "AffineGrid", "SequenceAt", "nothing"})


def mutate(data: bytes, rng: Random) -> tuple[bytes, str]:
    """A damaged copy of a serialised model, and what was done to it."""
    if rng.random() < 0.3:
        return _bytes(bytearray(data), rng)
    proto = ModelProto.FromString(data)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(CHANGES)
        try:
            change(proto, rng)
        except (ValueError, IndexError, TypeError):  # nothing is there to change, or protobuf does not let one write it
            continue
        done.append(change.__name__)
    return proto.SerializeToString(), ", ".join(done)


def _bytes(data: bytearray, rng: Random) -> tuple[bytes, str]:
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(data))
        match rng.randrange(6):
            case 0 | 1:
                data[at] = rng.randrange(256)
            case 2:
                data[at] ^= 1 << rng.randrange(8)
            case 3:
                del data[at:at + rng.choice((1, 1, 4, 30))]
            case 4:
                other = rng.randrange(len(data))
                data[at:at] = data[other:other + rng.choice((1, 4, 50))]
            case 5:
                data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 2, 9))))
        if not data:
            break
    if rng.random() < 0.1:
        del data[rng.randrange(len(data) + 1):]
    return bytes(data), "bytes"


def _values(graph: GraphProto) -> list[str]:
    found = [v for n in graph.node for v in (*n.input, *n.output)]
    return found + [t.name for t in graph.initializer] + [i.name for i in graph.input]


def _name(graph: GraphProto, rng: Random) -> str:
    return rng.choice((*NAMES, *_values(graph)[:40]) if rng.random() < 0.4 else _values(graph))


def _node(proto: ModelProto, rng: Random) -> NodeProto:
    bodies = [f.node for f in proto.functions if f.node]
    return rng.choice(rng.choice([proto.graph.node, *bodies]))


# -- nodes -----------------------------------------------------------------------------------------------------

def drop_node(proto: ModelProto, rng: Random) -> None:
    del proto.graph.node[rng.randrange(len(proto.graph.node))]


def repeat_node(proto: ModelProto, rng: Random) -> None:
    proto.graph.node.append(_node(proto, rng))


def move_node(proto: ModelProto, rng: Random) -> None:
    nodes = list(proto.graph.node)
    rng.shuffle(nodes)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def other_operator(proto: ModelProto, rng: Random) -> None:
    _node(proto, rng).op_type = rng.choice(OPERATORS)


def other_domain(proto: ModelProto, rng: Random) -> None:
    _node(proto, rng).domain = rng.choice(("", "ai.onnx", "tsc", "f", "com.microsoft", "ai.onnx.ml", "\0"))


def other_node_name(proto: ModelProto, rng: Random) -> None:
    _node(proto, rng).name = _name(proto.graph, rng)


def other_input(proto: ModelProto, rng: Random) -> None:
    node = _node(proto, rng)
    node.input[rng.randrange(len(node.input))] = _name(proto.graph, rng)


def other_output(proto: ModelProto, rng: Random) -> None:
    node = _node(proto, rng)
    node.output[rng.randrange(len(node.output))] = _name(proto.graph, rng)


def more_inputs(proto: ModelProto, rng: Random) -> None:
    _node(proto, rng).input.extend(_name(proto.graph, rng) for _ in range(rng.choice((1, 2, 40))))


def fewer_inputs(proto: ModelProto, rng: Random) -> None:
    node = _node(proto, rng)
    del node.input[rng.randrange(len(node.input)):]


def more_outputs(proto: ModelProto, rng: Random) -> None:
    _node(proto, rng).output.append(rng.choice((_name(proto.graph, rng), "new", "")))


def self_reference(proto: ModelProto, rng: Random) -> None:
    node = _node(proto, rng)
    node.input[rng.randrange(len(node.input))] = node.output[0]


def chain(proto: ModelProto, rng: Random) -> None:
    """A node again and again, on its own result."""
    node, count = _node(proto, rng), rng.choice((3, 30, 60))
    value = node.output[0]
    for k in range(count):
        again = proto.graph.node.add()
        again.CopyFrom(node)
        again.name = f"{node.name}_{k}"
        for at in range(len(again.input)):
            if rng.random() < 0.6 or at == 0:
                again.input[at] = value
        del again.output[:]
        again.output.append(f"chain_{k}")
        value = f"chain_{k}"
    proto.graph.output[0].name = value


# -- attributes ------------------------------------------------------------------------------------------------

def _attribute(proto: ModelProto, rng: Random) -> AttributeProto:
    return rng.choice([a for n in proto.graph.node for a in n.attribute])


def other_value(proto: ModelProto, rng: Random) -> None:
    attribute = _attribute(proto, rng)
    match attribute.type:
        case AttributeProto.INT:
            attribute.i = rng.choice(NUMBERS)
        case AttributeProto.FLOAT:
            attribute.f = rng.choice(FLOATS)
        case AttributeProto.STRING:
            attribute.s = rng.choice((b"", b"SAME_UPPER", b"VALID", b"linear", b"reflect", b"wrap", b"CRD", b"\xff"))
        case AttributeProto.INTS:
            if attribute.ints and rng.random() < 0.6:
                attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
            elif rng.random() < 0.5:
                attribute.ints.append(rng.choice(NUMBERS))
            else:
                del attribute.ints[rng.randrange(len(attribute.ints)):]
        case AttributeProto.TENSOR:
            _tensor(attribute.t, rng)


def other_kind(proto: ModelProto, rng: Random) -> None:
    attribute = _attribute(proto, rng)
    attribute.type = rng.choice(range(16))


def drop_attribute(proto: ModelProto, rng: Random) -> None:
    node = rng.choice([n for n in proto.graph.node if n.attribute])
    del node.attribute[rng.randrange(len(node.attribute))]


def new_attribute(proto: ModelProto, rng: Random) -> None:
    op = rng.choice([op for op in all_ops() if op.reads])
    value: Any = rng.choice((0, 1, -1, 2, 2**40, 0.5, "nearest", [1], [0, 1], [2, 2], [-1, 2**40]))
    _node(proto, rng).attribute.append(helper.make_attribute(rng.choice((*op.reads, "nonsense")), value))


def reference(proto: ModelProto, rng: Random) -> None:
    _attribute(proto, rng).ref_attr_name = rng.choice(("by", "axis", ""))


def subgraph(proto: ModelProto, rng: Random) -> None:
    inner = helper.make_graph([], "inner", [], [])
    for _ in range(rng.choice((1, 5, 30))):
        inner = helper.make_graph([helper.make_node("If", ["c"], ["o"], then_branch=inner, else_branch=inner)]
                                  if len(inner.SerializeToString()) < 4000 else [], "inner", [], [])
    _node(proto, rng).attribute.append(helper.make_attribute("body", inner))


# -- tensors ---------------------------------------------------------------------------------------------------

def _tensor(tensor: TensorProto, rng: Random) -> None:
    match rng.randrange(8):
        case 0:
            tensor.data_type = rng.choice(DTYPES)
        case 1 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        case 2:
            tensor.dims.append(rng.choice((0, 1, 2, -1, 2**40)))
        case 3:
            del tensor.dims[rng.randrange(len(tensor.dims) + 1):]
        case 4:
            tensor.raw_data = tensor.raw_data[:rng.randrange(len(tensor.raw_data) + 1)]
        case 5 if tensor.data_type == TensorProto.INT64 and tensor.raw_data:
            at = rng.randrange(len(tensor.raw_data) // 8) * 8
            number = rng.choice(NUMBERS).to_bytes(8, "little", signed=True)
            tensor.raw_data = tensor.raw_data[:at] + number + tensor.raw_data[at + 8:]
        case 5 | 6 if tensor.int64_data:
            tensor.int64_data[rng.randrange(len(tensor.int64_data))] = rng.choice(NUMBERS)
        case 7:
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value=rng.choice(("/etc/passwd", "../x", "w.bin", "")))


def other_constant(proto: ModelProto, rng: Random) -> None:
    _tensor(rng.choice(proto.graph.initializer), rng)


def other_constant_name(proto: ModelProto, rng: Random) -> None:
    rng.choice(proto.graph.initializer).name = _name(proto.graph, rng)


def constant_of_a_value(proto: ModelProto, rng: Random) -> None:
    """Another constant: one that another operand, or none, had."""
    shape = [rng.choice((0, 1, 2, 3)) for _ in range(rng.randrange(3))]
    count = 1
    for size in shape:
        count *= size
    dtype = rng.choice((TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL))
    numbers = [rng.choice((0, 1, -1, 2, 2**40)) if dtype == TensorProto.INT64 else rng.randrange(2) for _ in range(count)]
    proto.graph.initializer.append(helper.make_tensor(_name(proto.graph, rng), dtype, shape, numbers))


# -- inputs, outputs, the model --------------------------------------------------------------------------------

def _info(info: ValueInfoProto, rng: Random, graph: GraphProto) -> None:
    tensor = info.type.tensor_type
    match rng.randrange(7):
        case 0:
            tensor.elem_type = rng.choice(DTYPES)
        case 1 | 2:
            dim = rng.choice(tensor.shape.dim)
            if rng.random() < 0.5:
                dim.dim_value = rng.choice(NUMBERS)
            else:
                dim.dim_param = rng.choice((*NAMES, "N", "n", "H"))
        case 3:
            tensor.shape.dim.add(dim_value=rng.choice((0, 1, 2, 2**40)))
        case 4:
            del tensor.shape.dim[rng.randrange(len(tensor.shape.dim)):]
        case 5:
            tensor.ClearField("shape")
        case 6:
            info.name = _name(graph, rng)


def other_graph_input(proto: ModelProto, rng: Random) -> None:
    _info(rng.choice(proto.graph.input), rng, proto.graph)


def other_graph_output(proto: ModelProto, rng: Random) -> None:
    _info(rng.choice(proto.graph.output), rng, proto.graph)


def repeat_graph_output(proto: ModelProto, rng: Random) -> None:
    proto.graph.output.append(rng.choice((*proto.graph.output, *proto.graph.input)))


def drop_graph_value(proto: ModelProto, rng: Random) -> None:
    values = rng.choice((proto.graph.input, proto.graph.output, proto.graph.initializer))
    del values[rng.randrange(len(values))]


def no_tensor(proto: ModelProto, rng: Random) -> None:
    rng.choice((*proto.graph.input, *proto.graph.output)).type.sequence_type.elem_type.tensor_type.elem_type = 1


def other_opset(proto: ModelProto, rng: Random) -> None:
    found = rng.choice(proto.opset_import)
    if rng.random() < 0.8:
        found.version = rng.choice((-1, 0, 1, 6, 7, 8, 9, 10, 11, 12, 13, 15, 18, 20, 21, 23, 24, 26, 28, 29, 2**40))
    else:
        found.domain = rng.choice(("", "f", "ai.onnx", "com.microsoft"))


def other_function(proto: ModelProto, rng: Random) -> None:
    function = rng.choice(proto.functions)
    match rng.randrange(6):
        case 0:
            proto.functions.append(function)
        case 1:
            function.name = rng.choice(("outer", "scale", "Mul", ""))
        case 2:
            function.node.append(helper.make_node(function.name, ["a"], ["b"], domain=function.domain))
        case 3:
            del function.input[:]
        case 4:
            function.output.append("nowhere")
        case 5:
            function.attribute.append(rng.choice(("by", "axis", "")))


CHANGES: tuple[Callable[[ModelProto, Random], None], ...] = (
    drop_node, repeat_node, move_node, other_operator, other_operator, other_domain, other_node_name, other_input, other_input,
    other_output, more_inputs, fewer_inputs, more_outputs, self_reference, chain, other_value, other_value, other_value,
    other_kind, drop_attribute, new_attribute, new_attribute, reference, subgraph, other_constant, other_constant,
    other_constant, other_constant_name, constant_of_a_value, other_graph_input, other_graph_input, other_graph_output,
    repeat_graph_output, drop_graph_value, no_tensor, other_opset, other_opset, other_function)
