"""Control flow: If, Loop and Scan. Of an If constants or sizes may say which of its graphs stands for it; all else is run by
the plan, graph by graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tsc.errors import InternalError, ModelError
from tsc.ir import Graph, Node, TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind
from tsc.ops.movement import reshape
from tsc.ops.shapes import canonical, scalar_contents, tensor, unify, where
from tsc.sym import GREATEST, SymExpr
from tsc.te.expr import Expr, add, call, index

#: The operators by which programs gather what a loop makes in a list; and the domain and name of what joins slices instead.
LOOP, EMPTY_LIST, APPEND, JOIN_LIST = "Loop", "SequenceEmpty", "SequenceInsert", "ConcatFromSequence"
JOIN_SLICES = ("tsc", "JoinSlices")
#: The trips of a loop that only its condition ends.
ENDLESS = SymExpr.of(GREATEST)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of two graphs without inputs, as the first input says."""

    then: Graph
    otherwise: Graph


@dataclass(frozen=True, slots=True)
class Piece:
    """What a graph reads or makes a slice of in each trip: a value along an axis, from its end on where it is `reverse`."""

    value: str
    axis: int = 0
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Repetition:
    """A graph that runs `trips` times, or while it says so.

    `number` is its input that counts the trips ("": none). It hands on `states`: each has the value it begins with, the input
    that holds it and the output that is it in the next trip. It goes on while `condition`, another state, is true (None:
    always). In each trip its inputs `taken` are slices of values outside, and its outputs `given` are slices of what it makes.
    """

    body: Graph
    trips: SymExpr
    number: str
    states: tuple[tuple[str, str, str], ...]
    condition: tuple[str, str, str] | None
    taken: tuple[tuple[str, Piece], ...]
    given: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Trips:
    """How the graph of a repetition is run: a Dim that counts the trips, and how many there are at most. The first inputs and
    outputs are the `states`, of which number `condition` says whether there is another trip; what else it makes are slices,
    from the end on where these are `reverse`."""

    index: str
    count: SymExpr
    states: int
    condition: int | None
    reverse: tuple[bool, ...]


# -- If --------------------------------------------------------------------------------------------------------

def _if(ctx: InferContext) -> Graph | Choice:
    """The graph that a condition chooses, both where only the run knows."""
    if ctx.type(0).dtype != "bool":
        raise ModelError(f"{where(ctx)} has a condition of {ctx.type(0).dtype}, expected bool; cast it")
    held = ctx.contents[0]
    if held is not None and held.size != 1:
        raise ModelError(f"{where(ctx)} has {held.size} conditions, expected 1")
    for size in () if held is not None else canonical(ctx, 0):
        ctx.env.assume_eq(size, 1, f"{where(ctx)}: it has one condition")
    branches = [ctx.attr(name) for name in ("then_branch", "else_branch")]
    for name, branch in zip(("then_branch", "else_branch"), branches):
        assert isinstance(branch, Graph)
        if branch.inputs:
            raise ModelError(f"{where(ctx)} has a graph '{name}' with inputs, expected none; export it again")
    known = None if held is None else held.reshape(()).item().as_int()
    for branch in branches if known is None else (branches[0 if known else 1],):
        if len(branch.outputs) != len(ctx.node.outputs):
            raise ModelError(f"{where(ctx)} has {len(ctx.node.outputs)} outputs, but its graph makes {len(branch.outputs)}")
    return Choice(*branches) if known is None else branch


# -- Loop, Scan ------------------------------------------------------------------------------------------------

def _loop(ctx: InferContext) -> Repetition:
    body, starts, outputs = ctx.attr("body"), ctx.node.inputs[2:], ctx.node.outputs
    assert isinstance(body, Graph)
    _check_counts(ctx, body, len(starts) + 2, len(outputs) + 1)
    for k in range(len(starts)):
        ctx.type(2 + k)  # raises where there is none
    number, condition, *states = body.inputs
    made, *results = body.outputs
    count = len(states)
    pieces = tuple(Piece(value) for value in results[count:])
    trips = scalar_contents(ctx, 0, "number of trips") if ctx.has(0) else ENDLESS
    trips = ENDLESS if (trips.as_int() or 0) > GREATEST else trips  # exporters give the greatest number there is
    goes_on = (ctx.node.inputs[1] if ctx.has(1) else "", condition, made)
    return Repetition(body, trips, number, tuple(zip(starts, states, results)), goes_on, (), pieces)


def _scan(ctx: InferContext) -> Repetition:
    body, outputs = ctx.attr("body"), ctx.node.outputs
    assert isinstance(body, Graph)
    given = ctx.node.inputs
    if ctx.opset < 9:
        raise ModelError(f"{where(ctx)} is that of opset 8, which has a batch; convert the model with onnx.version_converter")
    scanned = int(ctx.attr("num_scan_inputs", 0))
    states = len(given) - scanned
    if not 1 <= scanned <= len(given):
        raise ModelError(f"{where(ctx)} scans {scanned} of {len(given)} inputs")
    _check_counts(ctx, body, len(given), len(outputs))
    for k in range(len(given)):
        ctx.type(k)  # raises where there is none
    taken, pieces = [], []
    for k, (value, own) in enumerate(zip(given[states:], body.inputs[states:])):
        axis = ctx.axis(_nth(ctx, "scan_input_axes", k, scanned), ctx.type(states + k).rank)
        taken.append((own, Piece(value, axis, bool(_nth(ctx, "scan_input_directions", k, scanned)))))
    lengths = [canonical(ctx, states + k)[piece.axis] for k, (_, piece) in enumerate(taken)]
    for length in lengths[1:]:
        unify(ctx.env, lengths[0], length, f"{where(ctx)}: what it scans has one length")
    for k, value in enumerate(body.outputs[states:]):
        many = len(body.outputs) - states
        pieces.append(Piece(value, _nth(ctx, "scan_output_axes", k, many), bool(_nth(ctx, "scan_output_directions", k, many))))
    handed = tuple(zip(given[:states], body.inputs[:states], body.outputs[:states]))
    return Repetition(body, ctx.env.canon(lengths[0]), "", handed, None, tuple(taken), tuple(pieces))


def _nth(ctx: InferContext, name: str, k: int, count: int) -> int:
    """Number `k` of an attribute that has one number for each of `count`, or none."""
    given = ctx.attr(name, (0,) * count)
    if len(given) != count:
        raise ModelError(f"{where(ctx)} has {len(given)} {name}, expected {count}")
    return int(given[k])


def _check_counts(ctx: InferContext, body: Graph, inputs: int, outputs: int) -> None:
    if len(body.inputs) != inputs or len(body.outputs) != outputs:
        raise ModelError(f"{where(ctx)} has a graph of {len(body.inputs)} inputs and {len(body.outputs)} outputs, expected "
                         f"{inputs} and {outputs}; export it again")


# -- what a condition says ---------------------------------------------------------------------------------------

#: What stands first and last in an order, and how much apart they are at least, of the operands of a comparison.
_ORDERS = {"Less": (0, 1, 1), "LessOrEqual": (0, 1, 0), "Greater": (1, 0, 1), "GreaterOrEqual": (1, 0, 0)}
_HANDED_ON = frozenset({"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze"})


def ordered(node: Node) -> tuple[str, str, int] | None:
    """The values a and b and the number k where a node says whether a + k <= b, of integers."""
    found = _ORDERS.get(node.op)
    return None if found is None else (node.inputs[found[0]], node.inputs[found[1]], found[2])


def implied(node: Node, is_false: Callable[[object], bool]) -> tuple[str, ...]:
    """The values that are true where the bool that a node makes is; `is_false` says whether a graph makes nothing else."""
    if node.op == "And":
        return node.inputs
    if node.op in _HANDED_ON:
        return node.inputs[:1]
    return node.inputs[:1] if runs_graphs(node) and trips_of(node) is None and is_false(node.attrs["bodies"][1]) else ()


# -- primitives: what the plan runs, and what counts its trips -----------------------------------------------------

def choose_node(condition: str, read: Sequence[str], outputs: Sequence[str], types: Sequence[TensorType],
                bodies: Sequence[object], name: str) -> Node:
    """A node that runs one of two graphs, both of which read the same values."""
    return Node("Choose", (condition, *read), tuple(outputs), {"bodies": tuple(bodies), "types": tuple(types)}, name)


def repeat_node(read: Sequence[str], outputs: Sequence[str], types: Sequence[TensorType], body: object, trips: Trips,
                name: str) -> Node:
    """A node that runs a graph trip by trip; of what it reads the first are states."""
    return Node("Repeat", tuple(read), tuple(outputs), {"bodies": (body,), "types": tuple(types), "trips": trips}, name)


def trips_of(node: Node) -> Trips | None:
    """How a node's graph is repeated; None of one that chooses."""
    found: Trips | None = node.attrs.get("trips")
    return found


def runs_graphs(node: Node) -> bool:
    """Whether a node's graphs are run by the plan, as its attribute `bodies`."""
    return "bodies" in node.attrs


def slice_node(value: str, axis: int, place: str, output: str, name: str) -> Node:
    """A node that gives the slice of a value at a place of an axis, which is data."""
    return Node("Gather", (value, place), (output,), {"axis": axis}, name)


def stack_node(slices: str, axis: int, output: str, name: str) -> Node:
    """A node that gives slices, which lie behind one another, along another axis."""
    domain, op = JOIN_SLICES
    return Node(op, (slices,), (output,), {"axis": axis, "new_axis": 1}, name, domain)


def number_node(number: str, shape: tuple[int, ...], factor: int, offset: SymExpr | int, output: str) -> Node:
    """A node that makes a number, times 1 or -1, plus an offset, of a shape of one element."""
    return Node("Number", (number,), (output,), {"shape": shape, "factor": factor, "offset": offset}, output)


def _told_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tuple(TensorType(t.dtype, tuple(map(ctx.env.canon, t.shape))) for t in ctx.attr("types"))


def _number_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor("int64", tuple(map(SymExpr.of, ctx.attr("shape"))))


def _number_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    ctx = lowering.infer
    number, offset = lowering.read(0, ()), index(ctx.env.canon(ctx.attr("offset")))
    return add(number, offset) if ctx.attr("factor") == 1 else call("sub", offset, number)


def _join_axis(ctx: InferContext) -> int:
    """The axis of the slices that is new, or along which they are joined."""
    rank = ctx.type(0).rank
    return ctx.axis(int(ctx.attr("axis", 0)), rank if ctx.attr("new_axis", 0) else rank - 1)


def _join_types(ctx: InferContext) -> tuple[TensorType, ...]:
    """Of slices that lie behind one another, as a list's elements in ConcatFromSequence."""
    count, *shape = canonical(ctx, 0)
    axis = _join_axis(ctx)
    if ctx.attr("new_axis", 0):
        shape.insert(axis, count)
    else:
        shape[axis] = ctx.env.canon(shape[axis] * count)
    return tensor(ctx.type(0).dtype, tuple(shape))


def _join(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    axis, rank = _join_axis(ctx), ctx.type(0).rank
    moved = ctx.node.inputs[0]
    if axis:
        moved = builder.emit("Transpose", moved, perm=(*range(1, axis + 1), 0, *range(axis + 1, rank)))
    return (reshape(builder, moved, _join_types(ctx)[0].shape),)


def _gone(ctx: InferContext) -> tuple[TensorType, ...]:
    raise InternalError(f"{where(ctx)} has graphs; another node should stand for it")


OPS: tuple[OpDef, ...] = (
    OpDef("If", PatternKind.OPAQUE, _gone, samples=list, region=_if, reads=("then_branch", "else_branch")),
    OpDef("Loop", PatternKind.OPAQUE, _gone, samples=list, region=_loop, reads=("body",)),
    OpDef("Scan", PatternKind.OPAQUE, _gone, samples=list, region=_scan, reads=(
        "body", "num_scan_inputs", "scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions")),
    OpDef("Choose", PatternKind.OPAQUE, _told_types, domain="tsc"),
    OpDef("Repeat", PatternKind.OPAQUE, _told_types, domain="tsc"),
    OpDef("JoinSlices", PatternKind.INJECTIVE, _join_types, decompose=_join, domain="tsc", reads=("axis", "new_axis")),
    OpDef("Number", PatternKind.INJECTIVE, _number_types, te=_number_te, domain="tsc"),
)
