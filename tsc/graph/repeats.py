"""Loops as nodes that the plan runs trip by trip: what their graphs hand on, and how its shapes change from trip to trip.

A state keeps its shape, or each trip makes an axis of it longer by the same: then it is as long as it began and so much for
each trip, which is proved by induction: if the graph is given that length it makes that of the next trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from tsc.errors import DataDependentError, ShapeError, UnsupportedError
from tsc.graph.bodies import Body, Opened, Scope, fitting
from tsc.ir import Contents, Graph, Node, TensorType, unused_name
from tsc.ops.control import ENDLESS, Repetition, Trips, implied, number_node, ordered, repeat_node, slice_node, stack_node
from tsc.ops.elementwise import copy_node, is_copy
from tsc.ops.generate import sizes_node
from tsc.ops.shapes import as_object, constant_contents
from tsc.sym import GREATEST, ZERO, ShapeEnv, SymExpr, dim, identifier, sym_max

#: An axis of a state: the state's number and the axis's.
Place = tuple[int, int]


def repeat(scope: Scope, node: Node, repetition: Repetition) -> None:
    """Add what stands for a node that runs a graph trip by trip. Raises UnsupportedError, naming the node, for shapes that
    change otherwise."""
    loop = _Loop(scope, node, repetition)
    try:
        grows = loop.growth()
    except DataDependentError as error:
        if others := [value for value in error.values if value not in loop.numbers]:
            raise DataDependentError(str(error), *others) from error  # for whoever can tell them
        loop.told = True  # sizes within a trip depend on which one it is
        grows = loop.growth()
    if grows and loop.condition is not None:
        loop.counted = True
    if loop.counted and repetition.trips == ENDLESS and (most := most_trips(loop, grows)) is not None:
        loop.repetition = replace(repetition, trips=most)
    trip = loop.trip(loop.grown(grows))
    trip.check(grows)
    loop.add(trip, grows)


def _grown(shape: Sequence[SymExpr], state: int, grows: dict[Place, SymExpr], trips: SymExpr) -> list[SymExpr]:
    return [size + grows.get((state, axis), ZERO) * trips for axis, size in enumerate(shape)]


@dataclass(slots=True)
class _Loop:
    """A repetition in the making: the values that its states begin with, with their shapes, and the Dim that counts trips. The
    number of a trip is another state, read as data; it is `told` as that Dim where sizes depend on it. `counted` says that
    sizes behind the loop depend on how many trips there were, `numbers` what the trip's has been called."""

    scope: Scope
    node: Node
    repetition: Repetition
    states: list[tuple[str, str, str]] = field(init=False)
    condition: int | None = None
    counted: bool = False
    told: bool = False
    numbers: set[str] = field(default_factory=set)
    index: str = field(init=False)

    def __post_init__(self) -> None:
        self.states = [*self.repetition.states]
        if self.repetition.condition is not None and not _always(self.scope, self.repetition):
            start, own, made = self.repetition.condition
            self.condition = len(self.states)
            self.states.append((start or self.scope.constant(f"{self.node.name}/goes_on", np.array(True)), own, made))
            self.counted = bool(self.repetition.given)
        env, most = self.scope.env, self.scope.env.bounds(self.repetition.trips)[1]
        last = None if most is None else max(most - 1, 0)
        self.index, = env.fork().fresh(identifier(f"{self.node.name}_trip"), 0, last).dims()

    @property
    def at(self) -> SymExpr:
        return dim(self.index)

    @property
    def where(self) -> str:
        return f"node '{self.node.name}' ({self.node.op})"

    @property
    def trips(self) -> SymExpr:
        """How many trips there are at most."""
        count = self.scope.env.canon(self.repetition.trips)
        return count if self.scope.env.prove_le(0, count) else sym_max(count, 0)

    @property
    def starts(self) -> list[TensorType]:
        return [self.scope.known.types[start] for start, _, _ in self.states]

    @property
    def shapes(self) -> list[tuple[SymExpr, ...]]:
        return [tuple(map(self.scope.env.canon, start.shape)) for start in self.starts]

    def grown(self, grows: dict[Place, SymExpr]) -> list[list[SymExpr]]:
        """The shapes of the states in a trip."""
        return [_grown(shape, k, grows, self.at) for k, shape in enumerate(self.shapes)]

    def growth(self) -> dict[Place, SymExpr]:
        """By how much each trip makes which axes of states longer."""
        unknown: set[Place] = set()
        while True:
            env = self.fork()
            dims = {place: env.fresh(f"{self.index}_size") for place in sorted(unknown)}
            trip = self.trip([[dims.get((k, axis), size) for axis, size in enumerate(shape)]
                              for k, shape in enumerate(self.shapes)], env)
            changed = {place for place, (size, made) in trip.sizes().items() if not env.prove_eq(size, made)}
            if changed <= unknown:
                steps = {place: self._step(trip, place, dims) for place in sorted(changed)}
                return {place: step for place, step in steps.items() if step is not None}
            unknown |= changed

    def _step(self, trip: _Trip, place: Place, dims: dict[Place, SymExpr]) -> SymExpr | None:
        """By how much a trip makes an axis longer; None where that is not the same for all trips."""
        size, made = trip.sizes()[place]
        names = {name for own in dims.values() for name in own.dims()} | {self.index}
        found = self.scope.outer(made - size, trip.body.env, names)
        return None if found is None or found.dims() & names else found

    def fork(self) -> ShapeEnv:
        """What is known within a trip."""
        env = self.scope.env.fork()
        most = env.bounds(self.repetition.trips)[1]
        env.declare(self.index, 0, None if most is None else max(most - 1, 0))
        if self.told and not env.prove_le(self.repetition.trips, 0):
            env.assume_le(self.at + 1, self.repetition.trips, f"{self.where}: a trip is one of all")
        return env

    def trip(self, shapes: Sequence[Sequence[SymExpr]], env: ShapeEnv | None = None,
             held: Mapping[int, Contents] = MappingProxyType({})) -> _Trip:
        """A trip whose states have these shapes, and some of them these contents."""
        env, scope, node = env or self.fork(), self.scope, self.node
        opened = scope.opened(self.repetition.body, node)
        inputs = {opened.names[own]: TensorType(start.dtype, tuple(shape))
                  for (_, own, _), start, shape in zip(self.states, self.starts, shapes)}
        before, after, read = list[Node](), list[Node](), scope.captured(opened)
        number = self._number(opened, inputs, before, after)
        if self.repetition.condition is not None and self.condition is None:
            opened.constants[opened.names[self.repetition.condition[1]]] = np.array(True)
        for own, piece in self.repetition.taken:
            at = number
            if piece.reverse:
                at = unused_name(f"{node.name}/from_the_end", scope.taken)
                before.append(number_node(number, (), -1, env.canon(self.repetition.trips - 1), at))
            before.append(slice_node(piece.value, piece.axis, at, opened.names[own], f"{node.name}/{own}"))
            read = [*read, *(v for v in (piece.value,) if v not in read)]
        outputs = [opened.names.get(v, v) for _, _, v in self.states]
        outputs += [node.outputs[0] for node in after]
        outputs += [opened.names.get(piece.value, piece.value) for piece in self.repetition.given]
        contents = {name: held[k] for k, name in enumerate(inputs) if k in held}
        body = scope.body(opened, env, inputs, read, before, after, _apart(outputs, after, scope), contents)
        return _Trip(self, body, read, [*inputs.values()])

    @property
    def numbered(self) -> bool:
        """Whether the number of a trip is a state."""
        return bool(self.repetition.number and not self.told) or bool(self.repetition.taken) or self.counted

    def _number(self, opened: Opened, inputs: dict[str, TensorType], before: list[Node], after: list[Node]) -> str:
        """The number of a trip: an input, from which the next one's is made, and the graph's own value, a size or that."""
        scope, own = self.scope, self.repetition.number and opened.names[self.repetition.number]
        rank = len(self.repetition.body.declared.get(self.repetition.number, ("", ()))[1] or ())
        if own and self.told:
            before.append(sizes_node(as_object(self.at).reshape((1,) * rank), "int64", own, own))
        if not self.numbered:
            return own
        state = unused_name(f"{self.node.name}/number", scope.taken)
        inputs[state] = TensorType("int64", ())
        if own and not self.told:
            self.numbers |= {state, own}
            before.append(number_node(state, (1,) * rank, 1, 0, own))
        following = unused_name(f"{self.node.name}/following", scope.taken)
        after.append(number_node(state, (), 1, 1, following))
        return state

    def add(self, trip: _Trip, grows: dict[Place, SymExpr]) -> None:
        """Add the node, and before and behind it what it needs."""
        scope, node = self.scope, self.node
        made = self.trips
        starts, outputs = [start for start, _, _ in self.states], list[str]()
        for k, output in enumerate(node.outputs[:len(self.repetition.states)]):
            outputs.append(output or unused_name(f"{node.name}/state_{k}", scope.taken))
        if self.condition is not None:
            outputs.append(unused_name(f"{node.name}/went_on", scope.taken))
        if self.numbered:
            starts.append(scope.constant(f"{node.name}/none", np.array(0, np.int64)))
            outputs.append(unused_name(f"{node.name}/made", scope.taken))
            made = scope.env.count(outputs[-1], made) if self.counted else made
        types = [TensorType(start.dtype, tuple(map(scope.env.canon, _grown(shape, k, grows, made))))
                 for k, (start, shape) in enumerate(zip(self.starts, self.shapes))]
        types += [TensorType("int64", ())] if self.numbered else []
        behind = list[Node]()
        for place, piece in enumerate(self.repetition.given):
            known = trip.body.graph.types[trip.body.graph.outputs[len(starts) + place]]
            shape = [scope.outer(size, trip.body.env) for size in known.shape]
            if None in shape:
                raise UnsupportedError(f"{self.where} puts slices {known} together, whose shape changes from trip to trip, "
                                       "which is not supported")
            slices = tuple(size for size in shape if size is not None)
            types.append(TensorType(known.dtype, (made, *slices)))
            output = node.outputs[len(self.repetition.states) + place]
            if piece.axis and output:
                apart = unused_name(f"{output}/slices", scope.taken)
                behind.append(stack_node(apart, piece.axis, output, f"{node.name}/{output}"))
                output = apart
            outputs.append(output or unused_name(f"{node.name}/slices_{place}", scope.taken))
        trips = Trips(self.index, scope.env.canon(self.repetition.trips), len(starts), self.condition,
                      tuple(piece.reverse for piece in self.repetition.given))
        scope.add(repeat_node([*starts, *trip.read], outputs, types, trip.body, trips, node.name))
        for one in behind:
            scope.add(one)


# -- loops that only their condition ends ------------------------------------------------------------------------

def most_trips(loop: _Loop, grows: dict[Place, SymExpr]) -> SymExpr | None:
    """How many trips a loop makes at most, which goes on only while a number that each trip raises is below another that stays
    as it is; None where that is not seen."""
    found = _counters(loop, grows)
    if found is None:
        return None
    trip, starts, steps = found
    graph, env, producers = trip.body.graph, trip.body.env, trip.body.graph.producers()
    assert loop.condition is not None
    pending, seen = [graph.outputs[loop.condition]], set[str]()
    while pending:
        value = pending.pop()
        node = producers.get(value)
        if node is None or value in seen:
            continue
        seen.add(value)
        pending += implied(node, _is_false)
        order = ordered(node)
        small, large = (None, None) if order is None else (_number(graph, name) for name in order[:2])
        if order is not None and small is not None and large is None and _told(loop, trip, order[1]):
            return most_trips(loop, grows)
        if order is None or small is None or large is None:
            continue
        for name, step in steps.items():
            rest, last = env.canon(small - dim(name)), loop.scope.outer(env.canon(large), env)
            offset = None if name in rest.dims() else loop.scope.outer(rest, env)
            if offset is not None and last is not None:  # start + step * t + offset + apart <= last, for the next trip to be
                room = last - offset - order[2] - starts[name] + step
                return loop.scope.env.canon(sym_max(room // step, 0) + 1)
    return None


def _counters(loop: _Loop, grows: dict[Place, SymExpr]) -> tuple[_Trip, dict[str, SymExpr], dict[str, int]] | None:
    """A trip in which each state that counts is a Dim; by these what they begin with, and by how much a trip raises them,
    whichever it is: shapes of states that grow depend on the trip."""
    env, starts, held = loop.fork(), dict[str, SymExpr](), dict[int, Contents]()
    places: dict[str, int] = {}
    for k, (start, _, _) in enumerate(loop.states):
        known, contents = loop.scope.known.types[start], loop.scope.known.contents_of(start)
        if known.dtype == "int64" and contents is not None and contents.size == 1:
            counter = env.fresh(f"{loop.index}_counter", -GREATEST, GREATEST)
            name, = counter.dims()
            starts[name], places[name], held[k] = contents.ravel()[0], k, as_object(counter).reshape(contents.shape)
    if not held:
        return None
    trip = loop.trip(loop.grown(grows), env, held)
    made = {name: _number(trip.body.graph, trip.body.graph.outputs[k]) for name, k in places.items()}
    changes = {name: None if number is None else env.canon(number - dim(name)).as_int() for name, number in made.items()}
    steps = {name: step for name, step in changes.items() if step is not None and step > 0}
    return (trip, starts, steps) if steps else None


def _number(graph: Graph, value: str) -> SymExpr | None:
    """The one integer that a value is known to hold."""
    found = graph.contents.get(value)
    if found is None and value in graph.constants:
        found = constant_contents(graph.constants[value])
    return None if found is None or found.size != 1 else SymExpr.of(found.ravel()[0])


def _told(loop: _Loop, trip: _Trip, value: str) -> bool:
    """Whether a number of a trip that comes from outside is known from now on."""
    if value not in trip.read:
        return False
    try:
        return bool(loop.scope.known.learn(DataDependentError(f"{loop.where} ends by '{value}', which only data tell", value)))
    except DataDependentError:
        if loop.scope.env.outside is not None:
            raise  # for whoever is around it
        return False


def _is_false(body: object) -> bool:
    """Whether a graph makes nothing but False."""
    assert isinstance(body, Body)
    producers, value = body.graph.producers(), body.graph.outputs[0]
    while value in producers and is_copy(producers[value]):
        value = producers[value].inputs[0]
    return _number(body.graph, value) == ZERO


def _apart(outputs: Sequence[str], after: list[Node], scope: Scope) -> list[str]:
    """The outputs, each by a name of its own."""
    made: list[str] = []
    for value in outputs:
        if value in made:
            name = unused_name(value, scope.taken)
            after.append(copy_node(value, name, name))
            value = name
        made.append(value)
    return made


@dataclass(frozen=True, slots=True)
class _Trip:
    """The graph of one trip, whose states have some types, and what it reads from outside."""

    loop: _Loop
    body: Body
    read: Sequence[str]
    states: Sequence[TensorType]

    def made(self, state: int) -> TensorType:
        """The type of a state in the next trip."""
        return self.body.graph.types[self.body.graph.outputs[state]]

    def sizes(self) -> dict[Place, tuple[SymExpr, SymExpr]]:
        """The sizes of the states' axes, in this trip and the next. Raises ModelError for other types."""
        found: dict[Place, tuple[SymExpr, SymExpr]] = {}
        for k, known in enumerate(self.states):
            made = self.made(k)
            fitting(made, known, f"{self.loop.where}: what its graph hands on as '{self.body.graph.inputs[k]}'")
            found |= {(k, axis): (size, there) for axis, (size, there) in enumerate(zip(known.shape, made.shape))}
        return found

    def check(self, grows: dict[Place, SymExpr]) -> None:
        """Hold the states to what they should become, where that is not proved. Raises UnsupportedError where they never do."""
        for (k, axis), (size, made) in self.sizes().items():
            own, reason = self.body.graph.inputs[k], f"{self.loop.where}: a state keeps its shape, or grows by the same"
            try:
                self.body.env.assume_eq(made, size + grows.get((k, axis), ZERO), reason)
            except ShapeError as error:
                raise UnsupportedError(f"{self.loop.where} hands on '{own}', whose axis {axis} becomes {made} where it was "
                                       f"{size}, which is not supported; export it so that it keeps its shape, or becomes "
                                       "longer by the same in each trip") from error


def _always(scope: Scope, repetition: Repetition) -> bool:
    """Whether a loop's condition is known to hold, before each trip."""
    assert repetition.condition is not None
    start, own, made = repetition.condition
    first = scope.known.constant_of(start) if start else np.array(True)
    copies = {node.outputs[0]: node.inputs[0] for node in repetition.body.nodes if is_copy(node)}
    while made in copies:
        made = copies[made]
    then = repetition.body.constants.get(made)
    return first is not None and bool(np.all(first)) and (made == own or (then is not None and bool(np.all(then))))
