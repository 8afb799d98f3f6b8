"""OpDef: everything about one operator, in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tsc.errors import DataDependentError, ModelError
from tsc.ir import Contents, Node, TensorType
from tsc.ops.form import Form
from tsc.sym import ShapeEnv, SymExpr
from tsc.te.compute import Axis, Monoid
from tsc.te.expr import Expr, Var


class PatternKind(Enum):
    """How an output element depends on input elements: what fusion and scheduling go by."""

    ELEMENTWISE = "elementwise"  # out[i] from in[i] of equal or broadcast shapes, or one constant
    BROADCAST = "broadcast"  # each output element is one input element, which broadcasting repeats (Expand)
    INJECTIVE = "injective"  # data movement or generation by index arithmetic (Transpose, Slice, Gather, Concat, Range)
    REDUCE = "reduce"  # one monoid over axes of one tensor
    CONTRACTION = "contraction"  # a sum of products of two tensors
    OPAQUE = "opaque"  # never fused


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reducing body: `monoid` over `axes` of `body`."""

    monoid: Monoid
    axes: tuple[Axis, ...]
    body: Expr


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A body made with elements of the output itself, of an earlier trip along its axis number `axis`: of one before, or behind
    where it is in `reverse`."""

    axis: int
    body: Expr
    reverse: bool = False


#: What a te body is.
Body: TypeAlias = Expr | Reduction | Recurrence


@dataclass(frozen=True, slots=True)
class InferContext:
    """What a shape rule or a value rule sees: the node, what is known of its inputs, and the ShapeEnv.

    `types[i]` is None for an absent input; `constants[i]` is the array of a constant input, else None; `contents[i]` the
    symbolic contents (object array of SymExpr) of a shape-arithmetic input (constants of integer dtype included), else None;
    `fractions[i]` the same of an input of the model whose elements need not be whole, in steps of 1 / STEPS.
    """

    node: Node
    opset: int
    types: Sequence[TensorType | None]
    constants: Sequence[NDArray[Any] | None]
    contents: Sequence[Contents | None]
    env: ShapeEnv
    fractions: Sequence[Contents | None] = ()

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute or its default."""
        return self.node.attrs.get(name, default)

    def type(self, i: int) -> TensorType:
        """The type of a required input. Raises ModelError when it is absent."""
        found = self.types[i] if i < len(self.types) else None
        if found is None:
            raise ModelError(f"node '{self.node.name}' ({self.node.op}) lacks its required input {i}")
        return found

    def has(self, i: int) -> bool:
        """Whether optional input `i` is present."""
        return i < len(self.types) and self.types[i] is not None

    def count(self, most: SymExpr, number: int = 0) -> SymExpr:
        """How many there are of something, at most `most`, where the data tell; one for each node and number."""
        return self.env.count(self.node.outputs[0], most, number)

    def axis(self, value: int, rank: int) -> int:
        """A normalised axis. Raises ModelError when it is out of range."""
        if not -rank <= value < rank:
            raise ModelError(f"node '{self.node.name}' ({self.node.op}) has axis {value}, but its rank is {rank}")
        return value % rank

    def holds(self, i: int, count: int) -> None:
        """Assume that input `i` has `count` elements where it is a list whose length is a Dim: the node leaves it no choice."""
        length = self.type(i).shape[0] if self.type(i).rank == 1 else None
        if length is not None and length.as_int() is None:
            self.env.assume_eq(length, count, f"node '{self.node.name}' ({self.node.op}): input {i} has {count} elements")

    def known(self, i: int, what: str, count: int | None = None) -> Contents:
        """Contents of an input that must be known at compile time, at least symbolically; where it is a list whose length is a
        Dim, this is `count`, if that is given. Raises DataDependentError if they are not known."""
        if count is not None:
            self.holds(i, count)
        found = self.contents[i] if i < len(self.contents) else None
        if found is None:
            raise DataDependentError(
                f"node '{self.node.name}' ({self.node.op}) has a data-dependent {what}, not supported yet: only the run knows "
                f"'{self.node.inputs[i]}'; store it in the model as a constant, or compute it from the shapes of inputs or "
                "from lists of whole numbers that are inputs", self.node.inputs[i])
        return found

    def steps(self, i: int, what: str) -> Contents:
        """The elements of an input in steps of 1 / STEPS, which must be known at compile time, at least symbolically. Raises
        DataDependentError if not."""
        found = self.fractions[i] if i < len(self.fractions) else None
        if found is None:
            raise DataDependentError(
                f"node '{self.node.name}' ({self.node.op}) has {what} that only the run knows, not supported yet; store "
                f"'{self.node.inputs[i]}' in the model as a constant, make it an input, or export the model with sizes in its "
                "place", self.node.inputs[i], fractions=True)
        return found


@dataclass(frozen=True, slots=True)
class Lowering:
    """What a te body sees: an InferContext plus ways to read inputs and to make reduce axes."""

    infer: InferContext
    out: tuple[TensorType, ...]
    read: Callable[[int, tuple[Expr, ...]], Expr]  # element of input i at an index
    axis: Callable[[str, SymExpr], Axis]  # a fresh reduce axis
    own: Callable[[tuple[Expr, ...]], Expr]  # element of the output that is made, at an index

    def var(self, axis: Axis) -> Var:
        """The index variable of a reduce axis."""
        return Var(axis.name)


@dataclass(frozen=True, slots=True)
class Builder:
    """What a decomposition sees: an InferContext and ways to add a constant or a Node, which return the names of its values."""

    infer: InferContext
    several: Callable[..., tuple[str, ...]]  # several(op, inputs, count, **attrs) -> output names
    constant: Callable[[NDArray[Any]], str]
    tells: Callable[[str, int], None]

    def counts(self, value: str, number: int = 0) -> None:
        """Say that the one int64 of a value is what the node's `count` of that number is."""
        self.tells(value, number)

    def emit(self, op: str, *inputs: str, **attrs: Any) -> str:
        """Add a Node of one output and return its name."""
        output, = self.several(op, inputs, 1, **attrs)
        return output


@dataclass(frozen=True, slots=True)
class OpDef:
    """One operator: shape rule, value rule, te body or decomposition, kind and samples.

    `types` gives the output types, by default those of what it is made of. `contents` gives the outputs' symbolic contents
    where the inputs' are known (or None). Exactly one of `te` and `decompose` is set (neither for `te.custom`, whose nodes
    bring their own): `te(lowering, output, index)` is the element of output number `output` at `index`; `decompose(builder)`
    returns the names that replace the outputs. `samples` make models for tests.
    """

    name: str
    kind: PatternKind
    types: Callable[[InferContext], tuple[TensorType, ...]] | None = None
    contents: Callable[[InferContext], tuple[Contents | None, ...]] | None = None
    te: Callable[[Lowering, int, tuple[Expr, ...]], Body] | None = None
    decompose: Callable[[Builder], tuple[str, ...]] | None = None
    samples: Callable[[], Sequence[Sample]] | None = None
    #: what it is made of where only a run knows its axes, which are input number `axes`
    told: Callable[[Builder], tuple[str, ...]] | None = None
    axes: int = 1
    #: inputs that are compile-time parameters (a Reshape's shape): never read by a kernel
    static_inputs: tuple[int, ...] = ()
    #: output dtype is an index or view of the input's memory in the same row-major order (Reshape, Squeeze, …)
    is_view: bool = False
    domain: str = ""
    #: what its nodes may be where the standard has no schema
    form: Form | None = None
    #: attributes that the rules read, and those that are of no consequence here (Dropout's seed); import refuses a node that
    #: gives any other one a value which is not the standard's default
    reads: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    #: what is said of attributes that import refuses and of what to do instead, where that is known
    instead: Mapping[str, str] = field(default_factory=dict)
    #: whether it takes any number of operands and may take some of them before the others, in their order
    associative: bool = False
    #: what operand `k` may hold everywhere for the result to be the other of two operands, bit for bit
    neutral: tuple[float | None, ...] = ()
    #: the operands that it is linear in, element by element, where the others are held
    linear: tuple[int, ...] = ()
    #: types in which it adds up factors of fewer bits, where the attribute `sum_dtype` says so
    widens: tuple[str, ...] = ()
    #: the axis along which an input, by its number, is only added to, so that it may hold nothing at first; None: it is not
    grows: Callable[[Node, int], int | None] | None = None
    #: whether it is a conversion: its first operand in another type
    converts: bool = False
    #: its operands from this one on are read as broadcasting does, so that one need not be expanded where the shape stays
    broadcasts_from: int | None = None
    #: the array that a node's attributes hold, where they hold all that it is; the text cites the node in errors
    literal: Callable[[Mapping[str, Any], str], NDArray[Any]] | None = None
    #: what stands for a node with graphs: one of them, or what says how the plan runs them (`tsc.ops.control`)
    region: Callable[[InferContext], object] | None = None


#: An associative operator's node has at most this many operands, more become a tree of nodes: kernels of one body take isl and
#: gcc more than linear time (13 s for a sum of 2,000), and fusion would stop at about as many operations.
MOST_OPERANDS = 100


@dataclass(frozen=True, slots=True)
class Sample:
    """A one-node model for tests: concrete input arrays (None: absent), attributes, output count."""

    inputs: Sequence[NDArray[Any] | None]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1


def symbolic(values: Sequence[Any] | NDArray[Any], shape: tuple[int, ...] | None = None) -> Contents:
    """An object array of SymExpr from ints and SymExprs."""
    source: Any = np.array(values, dtype=object)
    result = np.empty(source.shape, dtype=object)
    for i in np.ndindex(source.shape):
        result[i] = SymExpr.of(source[i])
    return result if shape is None else result.reshape(shape)
