"""Recurrent layers: RNN, GRU and LSTM as a projection of all steps at once and a recurrence over what is left.

The projection is a product like any other; the recurrence is written in the tensor DSL (`te.state`, `te.scan`) and is one
kernel for all steps. The standard's names: Y is every state, Y_h and Y_c the last ones; gates stand one after the other in the
rows of W and R (GRU: update, reset, new; LSTM: input, output, forget, cell).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tsc import te
from tsc.errors import ModelError
from tsc.ir import TensorType
from tsc.ops.activation import softplus
from tsc.ops.base import Builder, InferContext, OpDef, PatternKind, Sample
from tsc.ops.define import CUSTOM, CustomOp
from tsc.ops.samples import floats
from tsc.ops.shapes import canonical, is_float, unify, where
from tsc.sym import SymExpr
from tsc.te import Scalar, Tensor

# -- what a layer is -------------------------------------------------------------------------------------------

#: Input numbers that all three share; an LSTM has an initial cell state and peepholes behind them.
X, W, R, B, LENGTHS, FIRST, FIRST_CELL, PEEPHOLES = range(8)


@dataclass(frozen=True, slots=True)
class _Kind:
    """What tells the three apart: gates, the activations of one direction, the outputs that are there."""

    gates: int
    activations: tuple[str, ...]
    outputs: int
    step: Callable[[Step], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class Layer:
    """One direction of a layer as its recurrence sees it, with what its node's attributes say. `given` names the inputs that
    are there beside the projection and the weights."""

    op: str
    reverse: bool
    activations: tuple[tuple[str, float, float], ...]
    clip: float | None
    given: tuple[str, ...]
    coupled: bool = False
    reset_after: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """A layer over its tensors: the projection `x` [T, B, gates * H], `weights` [gates * H, H] and what else is `given`."""

    layer: Layer
    x: Tensor
    weights: Tensor
    given: Mapping[str, Tensor]

    @property
    def shape(self) -> tuple[int | Scalar, int | Scalar, int | Scalar]:
        """[T, B, H]."""
        return self.x.shape[0], self.x.shape[1], self.weights.shape[1]

    def state(self, name: str) -> Tensor:
        """A state of all steps that is carried from one to the next."""
        return te.state(self.shape, self.x.dtype, name, 0, self.layer.reverse)

    def before(self, state: Tensor, first: str) -> Tensor:
        """A state one step earlier: the initial one, or 0, at the first step."""
        def earlier(t: Scalar, b: Scalar, j: Scalar) -> Scalar:
            start: Scalar | float = self.given[first][b, j] if first in self.given else 0.0
            if self.layer.reverse:
                return te.where(t + 1 < self.shape[0], state[t + 1, b, j], start)
            return te.where(t >= 1, state[t - 1, b, j], start)

        return te.compute(self.shape, earlier, f"{state.name}_before")

    def mixed(self, name: str, count: int, factor: Tensor, offset: int = 0) -> Tensor:
        """`factor` times the weights of `count` gates from number `offset` on, along both their rows."""
        steps, rows, hidden = self.shape
        k = te.reduce_axis(hidden, f"{name}_k")
        return te.compute((steps, rows, hidden * count), lambda t, b, q: te.sum(
            self.weights[q + hidden * offset, k] * factor[t, b, k], axis=k), name)

    def gate(self, number: int, added: Scalar, t: Scalar, b: Scalar, j: Scalar) -> Scalar:
        """What enters gate `number`: the projection and what is `added`, clipped."""
        value, limit = self.x[t, b, j + self.shape[2] * number] + added, self.layer.clip
        return value if limit is None else te.maximum(te.minimum(value, limit), -limit)

    def active(self, number: int, value: Scalar) -> Scalar:
        """Activation `number` of the direction."""
        name, alpha, beta = self.layer.activations[number]
        return _ACTIVATIONS[name].function(value, alpha, beta)

    def kept(self, new: Scalar, old: Scalar | float, t: Scalar, b: Scalar) -> Scalar:
        """The new value within a row's own length, the old one beyond it."""
        return te.where(t < te.cast(self.given["lengths"][b], "int64"), new, old) if "lengths" in self.given else new


def _rnn(step: Step) -> tuple[Tensor, ...]:
    h = step.state("h")
    before = step.before(h, "first")
    mixed = step.mixed("mixed", 1, before)
    return (te.scan(h, lambda t, b, j: step.kept(
        step.active(0, step.gate(0, mixed[t, b, j], t, b, j)), before[t, b, j], t, b)),)


def _gru(step: Step) -> tuple[Tensor, ...]:
    """With `reset_after` (linear_before_reset) the reset gate scales what the state was multiplied to, else the state."""
    h, after, hidden = step.state("h"), step.layer.reset_after, step.shape[2]
    before = step.before(h, "first")
    mixed = step.mixed("mixed", 3 if after else 2, before)

    def entering(number: int, t: Scalar, b: Scalar, j: Scalar) -> Scalar:
        at = j + hidden * number
        return mixed[t, b, at] + step.given["bias"][at] if "bias" in step.given else mixed[t, b, at]

    def gate(number: int, t: Scalar, b: Scalar, j: Scalar) -> Scalar:
        return step.active(0, step.gate(number, entering(number, t, b, j), t, b, j))

    def new(added: Callable[..., Scalar], t: Scalar, b: Scalar, j: Scalar) -> Scalar:
        candidate = step.active(1, step.gate(2, added(t, b, j), t, b, j))
        update, old = gate(0, t, b, j), before[t, b, j]
        return step.kept((1.0 - update) * candidate + update * old, old, t, b)

    if after:
        def scaled(t: Scalar, b: Scalar, j: Scalar) -> Scalar:
            return gate(1, t, b, j) * entering(2, t, b, j)

        return (te.scan(h, lambda t, b, j: new(scaled, t, b, j)),)
    reset = te.compute(step.shape, lambda t, b, j: gate(1, t, b, j) * before[t, b, j], "reset")
    candidates = step.mixed("candidates", 1, reset, 2)
    return (te.scan(h, lambda t, b, j: new(lambda *at: candidates[at], t, b, j)),)


def _lstm(step: Step) -> tuple[Tensor, ...]:
    h, c, hidden = step.state("h"), step.state("c"), step.shape[2]
    before, cell_before = step.before(h, "first"), step.before(c, "first_cell")
    mixed = step.mixed("mixed", 4, before)

    def entering(number: int, t: Scalar, b: Scalar, j: Scalar) -> Scalar:
        return mixed[t, b, j + hidden * number]

    def gate(number: int, cell: Scalar, t: Scalar, b: Scalar, j: Scalar) -> Scalar:
        added = entering(number, t, b, j)
        if "peepholes" in step.given:
            added = added + step.given["peepholes"][j + hidden * number] * cell
        return step.active(0, step.gate(number, added, t, b, j))

    def memory(t: Scalar, b: Scalar, j: Scalar) -> Scalar:
        old = cell_before[t, b, j]
        enter = gate(0, old, t, b, j)
        forget = 1.0 - enter if step.layer.coupled else gate(2, old, t, b, j)  # of the two ways, ONNX Runtime's
        candidate = step.active(1, step.gate(3, entering(3, t, b, j), t, b, j))
        return step.kept(forget * old + enter * candidate, old, t, b)

    cells = te.scan(c, memory)

    def output(t: Scalar, b: Scalar, j: Scalar) -> Scalar:
        new = gate(1, cells[t, b, j], t, b, j) * step.active(2, cells[t, b, j])
        return step.kept(new, before[t, b, j], t, b)

    return te.scan(h, output), cells


def _recurrence(x: Tensor, weights: Tensor, *others: Tensor, layer: Layer) -> tuple[Tensor, ...]:
    return carried_states(Step(layer, x, weights, dict(zip(layer.given, others, strict=True))))


def carried_states(step: Step) -> tuple[Tensor, ...]:
    """Every state of one direction [T, B, H]: with 0 beyond a row's length where it has one, then as it is carried."""
    carried = _KINDS[step.layer.op].step(step)
    if "lengths" not in step.given:
        return carried
    first = carried[0]
    return te.compute(step.shape, lambda t, b, j: step.kept(first[t, b, j], 0.0, t, b), "y"), *carried


_KINDS = {"RNN": _Kind(1, ("Tanh",), 2, _rnn), "GRU": _Kind(3, ("Sigmoid", "Tanh"), 2, _gru),
          "LSTM": _Kind(4, ("Sigmoid", "Tanh", "Tanh"), 3, _lstm)}


# -- activations -----------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class _Activation:
    """A function of a value, alpha and beta, with the defaults of those that it uses (None: it does not)."""

    function: Callable[[Scalar, float, float], Scalar]
    alpha: float | None = None
    beta: float | None = None


_ACTIVATIONS = {
    "Relu": _Activation(lambda x, a, b: te.maximum(x, 0.0)),
    "Tanh": _Activation(lambda x, a, b: te.tanh(x)),
    "Sigmoid": _Activation(lambda x, a, b: 1.0 / (1.0 + te.exp(-x))),
    "Affine": _Activation(lambda x, a, b: x * a + b, 1.0, 0.0),
    "LeakyRelu": _Activation(lambda x, a, b: te.where(x >= 0.0, x, x * a), 0.01),
    "ThresholdedRelu": _Activation(lambda x, a, b: te.where(x > a, x, 0.0), 1.0),
    "ScaledTanh": _Activation(lambda x, a, b: te.tanh(x * b) * a, 1.0, 1.0),
    "HardSigmoid": _Activation(lambda x, a, b: te.maximum(te.minimum(x * a + b, 1.0), 0.0), 0.2, 0.5),
    "Elu": _Activation(lambda x, a, b: te.where(x < 0.0, (te.exp(x) - 1.0) * a, x), 1.0),
    "Softsign": _Activation(lambda x, a, b: x / (1.0 + te.maximum(x, -x))),
    "Softplus": _Activation(lambda x, a, b: Scalar(softplus(x.expr), x.uses)),
}
_BY_LOWER_CASE = {name.lower(): name for name in _ACTIVATIONS}


def _activations(ctx: InferContext, op: str, directions: int) -> list[tuple[str, float, float]]:
    """Those of all directions, one after the other; alphas and betas go to those that use one, in order."""
    names = ctx.attr("activations") or _KINDS[op].activations * directions
    wanted = len(_KINDS[op].activations) * directions
    if len(names) < wanted:  # the standard's default for an RNN has those of two directions
        raise ModelError(f"{where(ctx)} has {len(names)} activations, expected {wanted}")
    given = {name: iter(ctx.attr(f"activation_{name}") or ()) for name in ("alpha", "beta")}
    found = []
    for name in names[:wanted]:
        known = _BY_LOWER_CASE.get(str(name).lower())
        if known is None:
            raise ModelError(f"{where(ctx)} has the activation '{name}', expected one of {', '.join(_ACTIVATIONS)}")
        use = _ACTIVATIONS[known]
        alpha, beta = (0.0 if default is None else float(next(given[which], default))
                       for which, default in (("alpha", use.alpha), ("beta", use.beta)))
        found.append((known, alpha, beta))
    return found


# -- types -----------------------------------------------------------------------------------------------------

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _directions(ctx: InferContext) -> tuple[bool, ...]:
    """Whether each direction of a node runs in reverse."""
    name = ctx.attr("direction", "forward")
    if name not in _DIRECTIONS:
        raise ModelError(f"{where(ctx)} has the direction '{name}', expected one of {', '.join(_DIRECTIONS)}")
    return _DIRECTIONS[name]


def _types(ctx: InferContext) -> tuple[TensorType, ...]:
    return layer_types(ctx, ctx.node.op)


def layer_types(ctx: InferContext, op: str, turned: bool = False) -> tuple[TensorType, ...]:
    """The types of the outputs of a layer of kind `op`, whose weights may be `turned`: with gates along the last axis. Raises
    ModelError or ShapeError for inputs that do not fit."""
    kind, count, batch_first = _KINDS[op], len(_directions(ctx)), bool(ctx.attr("layout", 0))
    dtype = ctx.type(X).dtype
    if not is_float(dtype):
        raise ModelError(f"{where(ctx)} is of {dtype}, expected a floating-point type")
    _activations(ctx, op, count)
    for i, rank in ((X, 3), (W, 3), (R, 3), (B, 2), (LENGTHS, 1), (FIRST, 3), (FIRST_CELL, 3), (PEEPHOLES, 2)):
        if ctx.has(i) and ctx.type(i).rank != rank:
            raise ModelError(f"{where(ctx)} has an input {i} of rank {ctx.type(i).rank}, expected {rank}")
    steps, rows, width = canonical(ctx, X)
    if batch_first:
        steps, rows = rows, steps
    along = 1 if turned else 2
    hidden = canonical(ctx, R)[along]
    if ctx.attr("hidden_size") is not None:
        hidden = _same(ctx, R, along, SymExpr.of(int(ctx.attr("hidden_size"))))
    state = (rows, SymExpr.of(count), hidden) if batch_first else (SymExpr.of(count), rows, hidden)
    gates = hidden * kind.gates
    wanted = {W: (count, width, gates) if turned else (count, gates, width),
              R: (count, hidden, gates) if turned else (count, gates, hidden), B: (count, gates * 2), LENGTHS: (rows,),
              FIRST: state, FIRST_CELL: state, PEEPHOLES: (count, hidden * 3)}
    for i, shape in wanted.items():
        for k, extent in enumerate(shape if ctx.has(i) else ()):
            _same(ctx, i, k, SymExpr.of(extent))
    steps, rows, hidden = (ctx.env.canon(e) for e in (steps, rows, hidden))
    directions = SymExpr.of(count)
    last = TensorType(dtype, (rows, directions, hidden) if batch_first else (directions, rows, hidden))
    every = (rows, steps, directions, hidden) if batch_first else (steps, directions, rows, hidden)
    return (TensorType(dtype, every), last, last)[:max(1, len(ctx.node.outputs))]


def _same(ctx: InferContext, i: int, k: int, extent: SymExpr) -> SymExpr:
    """Dim `k` of input `i`, which has to be `extent`."""
    return unify(ctx.env, extent, canonical(ctx, i)[k], f"{where(ctx)}: dim {k} of input {i}")


# -- decomposition ---------------------------------------------------------------------------------------------

#: Of a direction: what enters its gates but for biases, the weights of its state, and what else its recurrence is given.
Product = Callable[[int], tuple[str, str, Mapping[str, str]]]


def _decompose(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    x = ctx.node.inputs[X]
    if ctx.attr("layout", 0):
        x = builder.emit("Transpose", x, perm=(1, 0, 2))

    def product(d: int) -> tuple[str, str, Mapping[str, str]]:
        w = builder.emit("Transpose", of_direction(builder, W, d), perm=(1, 0))
        return builder.emit("MatMul", x, w), of_direction(builder, R, d), {}

    return layers(builder, ctx.node.op, product, _recurrence)


def layers(builder: Builder, op: str, product: Product, recurrence: Callable[..., tuple[Tensor, ...]]) -> tuple[str, ...]:
    """The outputs of a layer of kind `op`, all directions of it."""
    ctx = builder.infer
    directions, batch_first = _directions(ctx), bool(ctx.attr("layout", 0))
    if len(ctx.node.outputs) > _KINDS[op].outputs:
        raise ModelError(f"{where(ctx)} has {len(ctx.node.outputs)} outputs, expected at most {_KINDS[op].outputs}")
    count = len(_KINDS[op].activations)
    activations = _activations(ctx, op, len(directions))
    made = []
    for d, reverse in enumerate(directions):
        projected, weights, given = product(d)
        own = tuple(activations[d * count:(d + 1) * count])
        layer, x, tensors = _layer_of(builder, Layer(op, reverse, own, None, ()), d, projected, given)
        states = builder.several(CUSTOM, (x, weights, *tensors), _KINDS[op].outputs - 1 + ("lengths" in layer.given),
                                 definition=CustomOp("ai.onnx", op, recurrence), attributes={"layer": layer})
        end = builder.constant(np.array(0 if reverse else -1))
        made.append((states[0], *(builder.emit("Gather", state, end, axis=0) for state in states[-(_KINDS[op].outputs - 1):])))
    every = _joined(builder, [y for y, *_ in made], 1)
    lasts = [_joined(builder, [state[k] for _, *state in made], 1 if batch_first else 0) for k in range(len(made[0]) - 1)]
    if batch_first:
        every = builder.emit("Transpose", every, perm=(2, 0, 1, 3))
    return (every, *lasts)[:len(ctx.node.outputs)]


def _joined(builder: Builder, values: Sequence[str], axis: int) -> str:
    """Values of all directions along an axis of their own."""
    apart = [builder.emit("Unsqueeze", value, axes=(axis,)) for value in values]
    return apart[0] if len(apart) == 1 else builder.emit("Concat", *apart, axis=axis)


def of_direction(builder: Builder, i: int, d: int, axis: int = 0) -> str:
    """Input `i` of direction `d`."""
    return builder.emit("Gather", builder.infer.node.inputs[i], builder.constant(np.array(d)), axis=axis)


def _layer_of(builder: Builder, layer: Layer, d: int, projected: str, others: Mapping[str, str]) -> tuple[
        Layer, str, tuple[str, ...]]:
    """A layer of direction `d` with all that its node says, what enters its gates, and what it is given."""
    ctx = builder.infer
    batch_first, reset_after = bool(ctx.attr("layout", 0)), bool(ctx.attr("linear_before_reset", 0))
    given: dict[str, str] = {}
    if ctx.has(B):
        halves = builder.emit("Reshape", of_direction(builder, B, d), builder.constant(np.array([2, -1])))
        entering, carried = (builder.emit("Gather", halves, builder.constant(np.array(k)), axis=0) for k in range(2))
        if reset_after:  # what is multiplied to the state is scaled with its bias
            given["bias"] = carried
        else:
            entering = builder.emit("Add", entering, carried)
        projected = builder.emit("Add", projected, entering)
    for name, i in (("lengths", LENGTHS), ("first", FIRST), ("first_cell", FIRST_CELL), ("peepholes", PEEPHOLES)):
        if ctx.has(i):
            axis = 1 if batch_first and i != PEEPHOLES else 0
            given[name] = ctx.node.inputs[i] if i == LENGTHS else of_direction(builder, i, d, axis)
    given |= others
    clip = ctx.attr("clip")
    made = replace(layer, clip=None if clip is None else float(clip), given=tuple(given),
                   coupled=bool(ctx.attr("input_forget", 0)), reset_after=reset_after)
    return made, projected, tuple(given.values())


# -- the operators ---------------------------------------------------------------------------------------------

def _samples(gates: int) -> Callable[[], Sequence[Sample]]:
    def made() -> Sequence[Sample]:
        x, w, r = floats(5, 3, 4), floats(1, gates * 6, 4, low=-0.5, high=0.5), floats(1, gates * 6, 6, low=-0.5, high=0.5)
        bias, first = floats(1, 2 * gates * 6), floats(1, 3, 6)
        return [Sample([x, w, r], {"hidden_size": 6}, 2), Sample([x, w, r, bias, None, first], {"hidden_size": 6}, 2)]
    return made


def _layer(name: str, *reads: str) -> OpDef:
    shared = ("hidden_size", "direction", "activations", "activation_alpha", "activation_beta", "clip", "layout")
    return OpDef(name, PatternKind.CONTRACTION, _types, decompose=_decompose, samples=_samples(_KINDS[name].gates),
                 reads=(*shared, *reads))


OPS: tuple[OpDef, ...] = (_layer("RNN"), _layer("GRU", "linear_before_reset"), _layer("LSTM", "input_forget"))
