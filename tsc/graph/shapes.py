"""Symbolic shape propagation: Algorithm 1 of the TSCompiler paper (section 4.1), forward and to siblings.

Types flow from producers to consumers. Where operands meet (broadcast, a contraction's reduced dim, Concat), dims that must
be equal become one in the ShapeEnv; every value whose type that changes is brought up to date, siblings included, and its
consumers go back on the worklist. Contents of shape arithmetic flow with the types.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tsc.config import DEFAULT_LIMITS, Limits
from tsc.errors import DataDependentError, InternalError, ModelError, TscError, UnsupportedError
from tsc.graph.equal_dims import assume_counted_dims
from tsc.graph.node_values import Budget, known_outputs
from tsc.graph.onnx.file import allow
from tsc.graph.onnx.schema import check_dtypes
from tsc.ir import Contents, Graph, Node, TensorType, unused_name
from tsc.ops import definition
from tsc.ops.base import Builder, InferContext, OpDef, symbolic
from tsc.ops.shapes import DTYPES, Values, constant_contents
from tsc.sym import GREATEST, OversizeError, ShapeEnv, SymExpr, identifier

Found = TypeVar("Found")

#: Nodes over constants are computed while shapes are inferred where they have at most this many bytes: sizes are that small.
_COMPUTED_BYTES = 64
#: .. and take at most so many steps: a window of a scalar may be as large as a number can be.
_COMPUTED_WORK = 1 << 16
#: The element types that may hold sizes; of numbers in floats only whole ones are.
_WHOLE = frozenset(dtype for dtype in DTYPES.values() if "int" in dtype or dtype in ("float16", "float32", "float64"))
_INTEGERS = frozenset(dtype for dtype in DTYPES.values() if "int" in dtype)
#: A node is inferred again when facts about its inputs change; more often than this means a rule that never settles.
_MOST_VISITS = 64
#: An input is taken for sizes where it is a list of at most this many whole numbers.
_MOST_TOLD = 64


def infer_shapes(graph: Graph, env: ShapeEnv, limits: Limits = DEFAULT_LIMITS) -> Graph:
    """The types of all values and the contents of shape arithmetic, canonical under `env`, which gains facts and Guards.

    A model's own nodes are held to the standard's element types, and their values to `limits`. Raises ShapeError or ModelError,
    naming the node, when operands cannot fit, and UnsupportedError for what only data decides.
    """
    known = Knowledge.of(graph, env, limits)
    consumers = graph.consumers()
    _propagate(known, graph.nodes, graph, consumers)
    version = env.version
    assume_counted_dims(replace(graph, types=known.types, contents=known.contents), env)
    if env.version != version:
        _propagate(known, _readers(known.refresh(), consumers), graph, consumers)
    known.refresh()
    _check_declared(graph, known.types)
    return replace(graph, types=known.types, contents=known.contents, fractions=known.fractions)


def check_inputs(graph: Graph, env: ShapeEnv, limits: Limits) -> None:
    """Raise UnsupportedError for an input of more elements than `limits` allow, once every node was found to fit its own."""
    for name in graph.inputs:
        _check_size(graph.types[name], f"input '{name}' is", env, limits)


def _check_size(made: TensorType, what: str, env: ShapeEnv, limits: Limits) -> None:
    """Raise ModelError or UnsupportedError for a value that no run could have; `what` begins the sentence about it."""
    least = [env.bounds(d) for d in made.shape]
    if made.rank > limits.rank:
        raise UnsupportedError(f"{what} a value of rank {made.rank}, more than {limits.rank}; {allow('rank')}")
    if any(high is not None and high < 0 for _, high in least):
        raise ModelError(f"{what} {made}, which has a negative size; correct the model or the dims given for it")
    if prod(max(low or 0, 0) for low, _ in least) > limits.elements:
        raise UnsupportedError(f"{what} {made}, more than {limits.elements} elements; {allow('elements')}")


def _check_declared(graph: Graph, types: Mapping[str, TensorType]) -> None:
    """Raise ModelError where an output is not what the file says it is."""
    for output, (dtype, sizes) in graph.declared.items():
        found = types[output]
        said = dtype if sizes is None else f"{dtype}[{', '.join('?' if s is None else str(s) for s in sizes)}]"
        fits = sizes is None or (found.rank == len(sizes) and all(
            own.as_int() in (None, size) for own, size in zip(found.shape, sizes) if size is not None))
        if found.dtype != dtype or not fits:
            raise ModelError(f"output '{output}' is declared as {said}, but its node makes {found}; the file is altered or was "
                             "exported wrongly, export it again")


def _propagate(known: Knowledge, nodes: Iterable[Node], graph: Graph, consumers: Mapping[str, list[Node]]) -> None:
    """Infer `nodes`, then whatever reads what changed, until nothing does."""
    order = {id(node): k for k, node in enumerate(graph.nodes)}
    worklist = deque(sorted(nodes, key=lambda n: order[id(n)]))
    waiting, visits = set(map(id, worklist)), Counter[int]()
    while worklist:
        node = worklist.popleft()
        waiting.discard(id(node))
        visits[id(node)] += 1
        if visits[id(node)] > _MOST_VISITS:
            raise InternalError(f"node '{node.name}' ({node.op}) does not settle in shape inference")
        version = known.env.version
        changed = known.infer(node)
        if known.env.version != version:
            changed |= known.refresh()
        again = [n for n in _readers(changed, consumers) if id(n) not in waiting]
        for successor in sorted(again, key=lambda n: order[id(n)]):
            waiting.add(id(successor))
            worklist.append(successor)


def _readers(values: Iterable[str], consumers: Mapping[str, list[Node]]) -> Iterable[Node]:
    """The nodes that read any of `values`, each once."""
    return {id(n): n for value in values for n in consumers.get(value, ())}.values()


def _held(contents: Contents, dtype: str, env: ShapeEnv) -> Contents | None:
    """What elements of `dtype` hold of `contents`: numbers wrap around as in kernels; None where a size may not fit.

    Sizes are taken to fit 32 bits, for no proof could tell, but not fewer, and not to be negative where there is no sign.
    """
    if dtype not in _INTEGERS:
        return contents
    limits, values = np.iinfo(dtype), []
    for value in contents.ravel():
        number = value.as_int()
        if number is not None:
            value = SymExpr.of((number - limits.min) % (1 << limits.bits) + limits.min)
        elif (limits.min == 0 and not env.prove_le(0, value)) or (limits.bits < 32 and not (
                env.prove_le(limits.min, value) and env.prove_le(value, limits.max))):
            return None
        values.append(value)
    return symbolic(values, contents.shape)


def _contents(operator: OpDef, ctx: InferContext) -> Values:
    """What the value rule says. Numbers that become too large for it are data, computed as kernels do; sizes are refused."""
    try:
        return operator.contents(ctx) if operator.contents else ()
    except OversizeError:
        if all(v.as_int() is not None for c in ctx.contents if c is not None for v in c.ravel()):
            return ()
        raise


@dataclass(slots=True)
class Knowledge:
    """What is known of each value while a graph is inferred or built."""

    env: ShapeEnv
    opset: int
    types: dict[str, TensorType]
    constants: Mapping[str, NDArray[Any]]
    contents: dict[str, Contents]
    fractions: dict[str, Contents] = field(default_factory=dict)
    from_constants: dict[str, Contents | None] = field(default_factory=dict)
    computed: dict[str, NDArray[Any]] = field(default_factory=dict)
    limits: Limits = DEFAULT_LIMITS
    standard: bool = False  # whether the nodes are held to the standard's element types and the limits
    inputs: frozenset[str] = frozenset()
    from_outside: frozenset[str] = frozenset()  # the inputs of a graph within a node
    makers: dict[str, Node] = field(default_factory=dict)  # of each value inferred, in that order

    @staticmethod
    def of(graph: Graph, env: ShapeEnv, limits: Limits = DEFAULT_LIMITS) -> Knowledge:
        """What `graph` already says. What a graph within a node reads is told, if at all, where it comes from."""
        inputs, outside = (frozenset(graph.inputs), frozenset[str]()) if env.outside is None else (
            frozenset[str](), frozenset(graph.inputs))
        return Knowledge(env, graph.opset, dict(graph.types), graph.constants, dict(graph.contents), dict(graph.fractions),
                         limits=limits, standard=not graph.primitives, inputs=inputs, from_outside=outside)

    def context(self, node: Node) -> InferContext:
        """What the rules of `node`'s OpDef see now."""
        present = [i or None for i in node.inputs]
        for value in filter(None, present):
            if value not in self.types:
                raise InternalError(f"node '{node.name}' ({node.op}) reads '{value}', whose type is not known")
        return InferContext(
            node, self.opset, tuple(self._type(i) if i else None for i in present),
            tuple(self.constant_of(i) if i else None for i in present),
            tuple(self.contents_of(i) if i else None for i in present), self.env,
            tuple(self.fractions.get(i) if i else None for i in present))

    def contents_of(self, value: str) -> Contents | None:
        """Symbolic contents of a value of shape arithmetic or of a small integer constant."""
        found, constant = self.contents.get(value), self.constant_of(value)
        if found is not None or constant is None:
            return found
        if value not in self.from_constants:
            self.from_constants[value] = constant_contents(constant)
        return self.from_constants[value]

    def output_types(self, node: Node) -> tuple[TensorType, ...]:
        """The types of all outputs of an inferred node; some type for one that is left out."""
        return tuple(self.types[o] if o else TensorType("float32", ()) for o in node.outputs)

    def infer(self, node: Node) -> set[str]:
        """Infer the outputs of `node`; the names whose type or contents changed. Where it needs values that are computed from
        whole numbers among the inputs, these are sizes from now on."""
        try:
            return self._infer(node)
        except DataDependentError as error:
            return self.learn(error) | self.infer(node)

    def asked(self, node: Node, rule: Callable[[InferContext], Found]) -> Found:
        """What a rule says of a node, with values as in `infer`."""
        try:
            return rule(self.context(node))
        except DataDependentError as error:
            self.learn(error)
            return self.asked(node, rule)

    def learn(self, error: DataDependentError) -> set[str]:
        """The names of which more is known where what a node lacked are sizes from now on. Raises it where they cannot be."""
        if error.fractions:
            changed = self._tell_steps(error.values[0])
        else:
            found, outside = self._sources(error.values)
            if outside and not found:
                raise DataDependentError(str(error), *outside) from error
            changed = set() if outside else self._tell(found, error.values)
        if not changed:
            raise error
        return changed

    def _sources(self, values: Iterable[str]) -> tuple[set[str], list[str]]:
        """The inputs that values are computed from whose elements may be sizes; and those which are from outside, where this
        is a graph within a node. None where something else is among them."""
        pending, seen, found, outside = [*values], set[str](), set[str](), list[str]()
        while pending:
            name = pending.pop()
            if name in seen or self.contents_of(name) is not None or self.constant_of(name) is not None:
                continue
            seen.add(name)
            if name in self.makers:
                pending += filter(None, self.makers[name].inputs)
            elif name in self.inputs and name not in self.fractions and self._may_be_sizes(self._type(name)):
                found.add(name)
            elif name in self.from_outside:
                outside.append(name)
            else:
                return set(), []
        return found, outside

    def _tell(self, found: set[str], values: Iterable[str]) -> set[str]:
        """Make the elements of inputs Dims, from which `values` are computed; the names of which more is known: where such were
        made Dims for other values before, too."""
        chain, pending = set[str](), [*values]
        while pending:
            name = pending.pop()
            if name in self.makers and name not in chain:
                chain.add(name)
                pending += filter(None, self.makers[name].inputs)
        for name in found:
            self._set_contents(name, self._told(name))
        between = {id(node): node for name, node in self.makers.items() if name in chain}
        return found.union(*map(self.infer, between.values()))

    def _tell_steps(self, name: str) -> set[str]:
        """Make the elements of an input, in steps of 1 / STEPS, Dims; its name, or nothing where that cannot be."""
        known = self._type(name)
        taken = self.contents.keys() | self.fractions.keys()
        if name not in self.inputs - taken or known.dtype != "float32" or not self._may_be_sizes(known):
            return set()
        self.fractions[name] = self._told(name)
        return {name}

    @staticmethod
    def _may_be_sizes(known: TensorType) -> bool:
        counts = [d.as_int() for d in known.shape]
        return known.dtype in _WHOLE and known.rank <= 1 and all(c is not None and c <= _MOST_TOLD for c in counts)

    def _told(self, name: str) -> Contents:
        """A Dim for each element of an input, which may be negative."""
        dtype, shape = self.types[name].dtype, [d.as_int() or 0 for d in self.types[name].shape]
        least, most = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype in _INTEGERS else (-GREATEST, GREATEST)
        least, most = max(least, -GREATEST), min(most, GREATEST)
        found = np.empty(shape, dtype=object)
        for at in np.ndindex(found.shape):
            found[at] = self.env.fresh(identifier("_".join(map(str, (name, *at)))), least, most)
        return found

    def _infer(self, node: Node) -> set[str]:
        operator, ctx = definition(node), self.context(node)
        self.makers.update(dict.fromkeys(filter(None, node.outputs), node))
        dtypes = [None if t is None else t.dtype for t in ctx.types]
        where = f"node '{node.name}' ({node.op})"
        if self.standard:
            check_dtypes(node.op, node.domain, self.opset, dtypes, where)
        try:
            types, contents = self._by_parts(node, operator) if operator.types is None else (
                operator.types(ctx), _contents(operator, ctx))
        except OversizeError as error:
            raise UnsupportedError(f"{where}: {error}") from error
        except TscError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(f"{where} does not fit its inputs ({', '.join(map(str, ctx.types))}): {error}") from error
        if len(types) < len(node.outputs):
            raise ModelError(f"{where} has {len(node.outputs)} outputs, expected at most {len(types)}")
        for made in types if self.standard else ():
            _check_size(made, f"{where} makes", self.env, self.limits)
        self._compute(node, ctx, types)
        changed = {name for name, t in zip(node.outputs, types) if name and self._set_type(name, t)}
        held = (None if c is None else _held(c, t.dtype, self.env) for c, t in zip(contents, types))
        return changed | {n for n, c in zip(node.outputs, held) if n and c is not None and self._set_contents(n, c)}

    def _by_parts(self, node: Node, operator: OpDef) -> tuple[tuple[TensorType, ...], Values]:
        """Types and contents of the outputs of a node, as the nodes have them that it is made of."""
        own = [i for i in node.inputs if i]
        known = {name: array for name in own if (array := self.constant_of(name)) is not None}
        inner = Knowledge(
            self.env, self.opset, {name: self.types[name] for name in own}, known,
            {name: held for name in own if (held := self.contents_of(name)) is not None},
            {name: self.fractions[name] for name in own if name in self.fractions}, limits=self.limits,
            from_outside=frozenset(own))
        taken = {*own}

        def several(op: str, inputs: Sequence[str], count: int, **attrs: Any) -> tuple[str, ...]:
            names = tuple(unused_name(f"{node.name}/{op}", taken) for _ in range(count))
            inner.infer(Node(op, tuple(inputs), names, attrs, names[0]))
            return names

        def constant(array: NDArray[Any]) -> str:
            name = unused_name(f"{node.name}/constant", taken)
            known[name], inner.types[name] = array, TensorType(array.dtype.name, tuple(map(SymExpr.of, array.shape)))
            return name

        if operator.decompose is None:
            raise InternalError(f"node '{node.name}' ({node.op}) has neither a rule for its types nor parts")
        made = operator.decompose(Builder(inner.context(node), several, constant, lambda value, number: None))
        return tuple(inner.types[name] for name in made), tuple(inner.contents_of(name) for name in made)

    def constant_of(self, value: str) -> NDArray[Any] | None:
        """The array of a constant, or of what is computed from constants while shapes are; None where it is none."""
        return self.constants[value] if value in self.constants else self.computed.get(value)

    def _compute(self, node: Node, ctx: InferContext, types: tuple[TensorType, ...]) -> None:
        """Sizes may be computed from constants in floats, where no symbolic contents flow (`int(16.0 ** 0.5)`)."""
        small = all(c is None or c.nbytes <= _COMPUTED_BYTES for c in ctx.constants)
        if small and not any(o in self.computed for o in node.outputs):
            found = known_outputs(node, ctx, types, _COMPUTED_BYTES, Budget(_COMPUTED_WORK)) or {}
            self.computed |= found
            for name, contents in ((n, constant_contents(array)) for n, array in found.items()):
                if contents is not None:
                    self._set_contents(name, contents)

    def refresh(self) -> set[str]:
        """Bring all that is known up to date with the facts; the names that changed."""
        changed = {name for name, t in self.types.items() if self._set_type(name, t)}
        changed |= {name for name, c in self.fractions.items() if self._set(self.fractions, name, c)}
        return changed | {name for name, c in self.contents.items() if self._set_contents(name, c)}

    def _type(self, value: str) -> TensorType:
        found = self.types[value]
        self._set_type(value, found)
        return self.types[value]

    def _set_type(self, name: str, found: TensorType) -> bool:
        canonical = TensorType(found.dtype, tuple(map(self.env.canon, found.shape)))
        if self.types.get(name) == canonical:
            return False
        self.types[name] = canonical
        return True

    def _set_contents(self, name: str, found: Contents) -> bool:
        return self._set(self.contents, name, found)

    def _set(self, table: dict[str, Contents], name: str, found: Contents) -> bool:
        canonical = symbolic(canon_all(found.ravel(), self.env), found.shape)
        old = table.get(name)
        if old is not None and old.shape == canonical.shape and bool(np.all(old == canonical)):
            return False
        table[name] = canonical
        return True


def canon_all(values: Iterable[SymExpr], env: ShapeEnv) -> list[SymExpr]:
    """Each of `values`, canonical."""
    return [env.canon(v) for v in values]
