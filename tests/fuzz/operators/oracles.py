"""What ONNX Runtime and the reference evaluator say of a model, and how far float32 may be from float64 at each element.

The reference evaluator runs node by node three ways: as the model says; *wide*, with float64 in the place of float32; and wide
with a random relative error of float32's size after each node that rounds. What these errors move, rounding may move.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnx.parser
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.fuzz.operators.mended import MENDED
from tests.fuzz.operators.rounding import COMPOUND, EXACT, FLOAT_ATTRIBUTES, ONE_VALUE, ROUNDED, WHOLE, exactly, passes
from tests.fuzz.operators.sums import ABOVE, BELOW, Roundings
from tests.fuzz.operators.values import Array

#: The newest opset that the installed ONNX Runtime loads.
RUNTIME_OPSET = 26
#: Relative rounding error of a type, and how many draws of errors are taken.
UNIT, DRAWS = {"float32": 2.0**-24, "float64": 2.0**-53}, 4
#: Before something is said to be wrong, so many draws are taken.
MORE_DRAWS = 24
#: Of outputs no larger more is drawn: errors of a few operands, as the two elements of a mean, may cancel in all of four draws.
_FEW = 1 << 12
#: A draw that moves an element so much further than those before shows a jump, of which there may be more: at a root of what is
#: nothing but rounding half of the errors lead to NaN. Then more is drawn, until nothing new is seen several times.
_JUMP, _MOST_DRAWS = 1000.0, 40
#: Errors are drawn this many units large: functions are not rounded correctly, sums add their terms in any order.
LARGE = 8.0
#: Half of the least positive number, which is what a rounding at least may be off by, LARGE times: by unit.
COARSE = {2.0**-24: 2.0**-147, 2.0**-53: 2.0**-1072}


@dataclass(frozen=True)
class Answer:
    """What an oracle gives: values, or why not. `cannot`: it lacks the operator or type, which says nothing of the model."""

    values: Sequence[Array] | None
    refusal: str = ""
    cannot: bool = False


@dataclass(frozen=True)
class Expected:
    """The outputs in float64 arithmetic with the deviation that rounding may cause, per element: of an integer, how far from it
    another rounding was seen to lead. `range` says that a value on the way leaves float32's range, `unsure` where an integer or
    a truth depends on rounding; `outcomes` what overflow in another order of summation leads to."""

    exact: Sequence[Array]
    deviation: Sequence[Array]
    unsure: Sequence[Array]
    outcomes: Sequence[Array]
    range: bool


# -- ONNX Runtime ----------------------------------------------------------------------------------------------

@dataclass
class Runtime:
    """One session, made when first asked."""

    model: ModelProto
    session: Any = None
    refusal: Answer | None = None

    def run(self, feeds: Mapping[str, Array]) -> Answer:
        if self.refusal is not None:
            return self.refusal
        try:
            if self.session is None:
                self.session = self._open()
        except Exception as error:
            self.refusal = _refused(error)
            return self.refusal
        try:
            return Answer([np.asarray(y) for y in self.session.run(None, dict(feeds))])
        except Exception as error:
            return _refused(error)

    def _open(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        return onnxruntime.InferenceSession(_older(self.model).SerializeToString(), options, providers=["CPUExecutionProvider"])


def _older(model: ModelProto) -> ModelProto:
    """The model in an opset that ONNX Runtime knows, where its operators mean the same there."""
    opset = model.opset_import[0].version
    if opset <= RUNTIME_OPSET:
        return model
    same = all(onnx.defs.has(n.op_type, RUNTIME_OPSET, "") and onnx.defs.get_schema(n.op_type, opset, "").since_version
               == onnx.defs.get_schema(n.op_type, RUNTIME_OPSET, "").since_version for n in model.graph.node)
    if not same:
        return model
    older = ModelProto()
    older.CopyFrom(model)
    older.opset_import[0].version = RUNTIME_OPSET
    return older


_LACKS = ("NOT_IMPLEMENTED", "Could not find an implementation", "No implementation for operator", "is not supported",
          "not implemented", "Unsupported", "Dilation not supported", "current official support", "unsupported",
          "No Op registered", "not registered", "does not support", "only supports", "model_load_utils", "MemoryError",
          "Failed to allocate", "bad_alloc", "BFCArena")


def _refused(error: Exception) -> Answer:
    text = f"{type(error).__name__}: {error}"
    lacks = isinstance(error, NotImplementedError) or any(word in text for word in _LACKS)
    return Answer(None, text.replace("\n", " ")[:300], lacks)


def _declared(y: Array, output: ValueInfoProto) -> Array:
    """A result in the floating-point type that the standard infers: the reference gives LayerNormalization's mean that of x."""
    kind = output.type.tensor_type.elem_type
    wanted = helper.tensor_dtype_to_np_dtype(kind) if kind else y.dtype
    return y.astype(wanted) if y.dtype.kind == wanted.kind == "f" else y


# -- the reference evaluator -----------------------------------------------------------------------------------

@dataclass
class Reference:
    """The reference evaluator of a model, and of its wide form."""

    model: ModelProto
    narrow: Any = None
    wide: Any = None

    def run(self, feeds: Mapping[str, Array]) -> Answer:
        """What the reference evaluator gives."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                if self.narrow is None:
                    self.narrow = ReferenceEvaluator(self.model, new_ops=MENDED)
                found = self.narrow.run(None, dict(feeds))
                return Answer([_declared(np.asarray(y), o) for y, o in zip(found, self.model.graph.output)])
        except Exception as error:
            return _refused(error)

    def all_values(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Every value by its name, in the model's own types; those before the node that the reference evaluator refuses, and
        none where it refuses the model."""
        if self.narrow is None:
            return {}
        found = {"": None, **self.narrow.rt_inits_, **feeds}
        with warnings.catch_warnings(), np.errstate(all="ignore"), suppress(Exception):
            warnings.simplefilter("ignore")
            for node in self.narrow.rt_nodes_:
                given = [found[i] for i in node.input]
                found.update(zip(node.output, node.run(*given, context=found) if node.need_context() else node.run(*given)))
        return {name: np.asarray(x) for name, x in found.items() if x is not None}

    def expected(self, feeds: Mapping[str, Array], like: Sequence[Array], draws: int = DRAWS) -> Expected | None:
        """The outputs in float64, None where the reference evaluator does not go there. `like`: outputs in their own types.
        `draws` of errors are taken at least."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                if self.wide is None:
                    self.wide = ReferenceEvaluator(widened(inlined(self.model)), new_ops=MENDED)
                return self._expected(feeds, like, draws)
        except Exception:
            return None

    def _expected(self, feeds: Mapping[str, Array], like: Sequence[Array], draws: int) -> Expected | None:
        names = [o.name for o in self.model.graph.output]
        nodes = [n for n in self.model.graph.node if n.op_type != "Constant"]
        double = all(y.dtype != np.float32 for y in like) and any(y.dtype == np.float64 for y in like)
        double = double and not any(n.op_type in FLOAT_ATTRIBUTES for n in nodes)
        unit, found = UNIT["float64" if double else "float32"], Roundings(np.finfo(np.float64 if double else np.float32), {})
        results = self._evaluate(feeds, found)
        exact = [np.asarray(results[n]) for n in names]
        if any(e.shape != y.shape for e, y in zip(exact, like)):
            return None
        if all(exactly(n) for n in nodes) or (len(nodes) == 1 and nodes[0].op_type in ROUNDED):
            none = [np.zeros(e.shape, int) for e in exact]
            return Expected(exact, none, [z > 0 for z in none], none, self._leaves(results))
        deviation, unsure = [np.zeros(e.shape) for e in exact], [np.zeros(e.shape, bool) for e in exact]
        outcomes = [found.outcomes(n, e) for n, e in zip(names, exact)]
        least, alike = draws if max(e.size for e in exact) > _FEW else max(draws, 3 * DRAWS), 0
        for seed in range(_MOST_DRAWS):
            if seed >= least and alike >= DRAWS - 1:
                break
            moved, jumps = self._evaluate(feeds, found, np.random.default_rng(seed), unit), False
            for k, name in enumerate(names):
                other = np.asarray(moved[name])
                if exact[k].dtype.kind == "f":
                    apart, lost = np.abs(other - exact[k]), np.isnan(other) != np.isnan(exact[k])
                    turned = np.isinf(other) & (other == -exact[k])  # divided by a zero of either sign
                    apart = np.where(np.isnan(apart) | turned, 0, apart)
                    outcomes[k] = outcomes[k] | np.where(turned, np.where(other > 0, ABOVE, BELOW), 0)
                    smooth = np.maximum(deviation[k], LARGE * unit * np.where(np.isfinite(exact[k]), np.abs(exact[k]), 0))
                    jumps |= bool((lost & ~unsure[k]).any() or (apart > np.maximum(_JUMP * smooth, _JUMP * unit)).any())
                    deviation[k] = np.maximum(deviation[k], apart)
                    unsure[k] |= lost
                else:
                    unsure[k] |= other != exact[k]
                    deviation[k] = np.maximum(deviation[k], np.abs(other.astype(np.float64) - exact[k].astype(np.float64)))
            alike = 0 if jumps else alike + 1
        for k, e in enumerate(exact):
            if e.size and e.dtype.kind == "f":  # all draws may cancel at an element
                deviation[k] = np.maximum(deviation[k], np.median(deviation[k]) / 2)
            elif e.size and unsure[k].mean() > 0.05:  # or agree on what is by chance
                deviation[k][...], unsure[k] = deviation[k].max(), np.ones(e.shape, bool)
        return Expected(exact, deviation, unsure, outcomes, self._leaves(results))

    def _evaluate(self, feeds: Mapping[str, Array], found: Roundings, rng: np.random.Generator | None = None,
                  unit: float = 0.0) -> dict[str, Any]:
        """All values by name. Without `rng` the roundings of nodes are added to `found`. With it, what rounds has an error of
        its own at each of its uses: a kernel may compute it anew there, or never round it; but what is compared, or something
        subtracted from it, is one value in all such places (ONE_VALUE). Where it may overflow it is NaN or 1."""
        results: dict[str, Any] = {"": None, **self.wide.rt_inits_}
        results.update({n: _wide_array(x) for n, x in feeds.items()})
        rounded: set[str] = set()
        kept: dict[str, Any] = {}
        for node in self.wide.rt_nodes_:
            rounds = not exactly(node.onnx_node)
            inputs = [results[i] for i in node.input]
            if rng is not None:
                inside = COMPOUND.get(node.op_type, 0) if rounds else 0
                shaken = partial(_shaken, rng=rng, unit=unit)
                if node.op_type in ONE_VALUE:
                    kept.update({n: shaken(x, scale=found.size(n)) for n, x in zip(node.input, inputs)
                                 if n in rounded and n not in kept})
                    inputs = [found.used(n, kept.get(n, x), rng) for n, x in zip(node.input, inputs)]
                else:
                    inputs = [found.used(n, shaken(x, scale=found.size(n)), rng) if n in rounded or k < inside else x
                              for k, (n, x) in enumerate(zip(node.input, inputs))]
                inputs = [_either_zero(x, rng) if n in found.of else x for n, x in zip(node.input, inputs)]
            between = rounds and node.op_type == "Resize" and inputs[0].dtype.kind in "iu"
            outputs = self._between_integers(node, inputs, rng, unit) if between and rng is not None else (
                self._run_node(node, inputs, results))
            results.update({n: _wide_array(y) for n, y in zip(node.output, outputs)})
            if rounds or (passes(node.onnx_node) and any(n in rounded for n in node.input)):
                rounded.update(node.output)
                if rng is None and rounds:
                    found.add(node.onnx_node, inputs, np.asarray(outputs[0]), partial(self._first, node))
        if rng is not None:
            results.update({n: _shaken(results[n], rng, unit, found.size(n)) for n in self.wide.output_names if n in rounded})
        return results

    def _first(self, node: Any, inputs: Sequence[Any]) -> Array:
        return np.asarray(self._run_node(node, inputs)[0])

    def _run_node(self, node: Any, inputs: Sequence[Any], context: Mapping[str, Any] | None = None) -> Sequence[Any]:
        found = node.run(*inputs, context=context or {}) if node.need_context() else node.run(*inputs)
        return list(found)

    def _between_integers(self, node: Any, inputs: Sequence[Any], rng: np.random.Generator, unit: float) -> list[Array]:
        """Integers that are interpolated, in floats with an error, and only then rounded: halves may go either way."""
        x = inputs[0]
        limits = np.iinfo(x.dtype)
        exact = self._run_node(node, [x.astype(np.float64), *inputs[1:]])[0]
        moved = _shaken(exact, rng, unit, np.abs(x.astype(np.float64)).max(initial=0.0))
        return [np.clip(np.rint(moved), limits.min, limits.max).astype(x.dtype)]

    def _leaves(self, results: Mapping[str, Any]) -> bool:
        """Whether some value is beyond float32's range, or so small that float32 rounds it coarsely."""
        for value in results.values():
            if isinstance(value, np.ndarray) and value.dtype == np.float64:
                size = np.abs(value[np.isfinite(value)])
                if (size > 1e37).any() or ((size < 1e-37) & (size > 0)).any():
                    return True
        curved = any(n.op_type not in EXACT | ROUNDED for n in self.model.graph.node)  # the exponential of 89 is too large
        return curved and any(isinstance(v, np.ndarray) and v.dtype == np.float64 and (np.abs(v[np.isfinite(v)]) > 80).any()
                              for v in results.values())


def _shaken(value: Any, rng: np.random.Generator, unit: float, scale: Any = None) -> Any:
    """`value` with a random error of some units, relative to `scale` where that is larger. Errors have any sign and nearly one
    size, so that what one of them moves is seen in each draw, and two in a row do not undo each other. Where `scale` is
    infinite not even doubles hold the terms: NaN, or a number in its place."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    size = np.abs(value) if scale is None else np.maximum(np.abs(value), scale)
    error = np.where(size > 0, np.maximum(size * (LARGE * unit), COARSE[unit]), 0)
    moved = value + error * rng.choice((-1.0, 1.0), value.shape) * rng.uniform(0.7, 1.0, value.shape)
    moved = np.where(np.isfinite(value) & np.isfinite(size), moved, value)
    return moved if scale is None else np.where(np.isinf(scale), np.where(np.isnan(value), 0.0, np.nan), moved)


def _either_zero(value: Any, rng: np.random.Generator) -> Any:
    """A sum with zeros of either sign: of one term that is -0.0 it is this, or 0.0 where it began with that."""
    return np.where(value == 0, rng.choice((-0.0, 0.0), value.shape), value)


def _wide_array(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and value.dtype == np.float32:
        return np.asarray(value, np.float64)
    return value


def inlined(model: ModelProto) -> ModelProto:
    """The model with the standard's own definition in smaller operators in the place of each node that has one, so that every
    rounding on the way counts."""
    model = _with_whole_scales(_with_means(_newest(model)))
    opset = model.opset_import[0].version
    for _ in range(4):
        schemas = [(n.op_type, onnx.defs.get_schema(n.op_type, opset, "")) for n in model.graph.node]
        chosen = sorted({("", op) for op, s in schemas
                         if op not in EXACT | WHOLE and (s.has_function or s.has_context_dependent_function)})
        if not chosen:
            break
        typed = onnx.shape_inference.infer_shapes(model)
        known = {v.name for v in (*typed.graph.input, *typed.graph.value_info)}
        typed.graph.value_info.extend(onnx.helper.make_tensor_value_info(t.name, t.data_type, tuple(t.dims))
                                      for t in typed.graph.initializer if t.name not in known)
        for node in typed.graph.node:
            _with_defaults(node, opset)
        try:
            model = onnx.inliner.inline_selected_functions(typed, chosen, inline_schema_functions=True)
        except Exception:
            break
    return model


#: As the standard's text defines it; the standard has no body for it. Of few elements the mean's own rounding moves all of them
#: the same way, which errors of the input do not.
_INSTANCE_NORMALIZATION = """<opset_import: ["" : 18], domain: "text">
InstanceNormalization <epsilon: float = 0.00001> (x, scale, bias) => (y) {
    rows = Constant <value_ints: ints = [0, 0, -1]> ()
    last = Constant <value_ints: ints = [2]> ()
    channel = Constant <value_ints: ints = [1]> ()
    eps = Constant <value_float: float = @epsilon> ()
    flat = Reshape (x, rows)
    mean = ReduceMean (flat, last)
    apart = Sub (flat, mean)
    squares = Mul (apart, apart)
    variance = ReduceMean (squares, last)
    shifted = Add (variance, eps)
    spread = Sqrt (shifted)
    unit = Div (apart, spread)
    factor = Unsqueeze (scale, channel)
    offset = Unsqueeze (bias, channel)
    scaled = Mul (unit, factor)
    moved = Add (scaled, offset)
    shape = Shape (x)
    y = Reshape (moved, shape)
}"""


def _with_means(model: ModelProto) -> ModelProto:
    """The model with InstanceNormalization in smaller operators."""
    if model.opset_import[0].version < 18 or all(n.op_type != "InstanceNormalization" for n in model.graph.node):
        return model
    found = ModelProto()
    found.CopyFrom(model)
    found.opset_import.append(helper.make_opsetid("text", 1))
    found.functions.append(onnx.parser.parse_function(_INSTANCE_NORMALIZATION))
    found.functions[0].opset_import[0].version = model.opset_import[0].version
    for node in found.graph.node:
        if node.op_type == "InstanceNormalization":
            node.domain = "text"
            _with_epsilon(node)
    return onnx.inliner.inline_local_functions(found)


def _with_epsilon(node: NodeProto) -> None:
    if all(a.name != "epsilon" for a in node.attribute):
        node.attribute.append(helper.make_attribute("epsilon", 1e-5))


def _with_whole_scales(model: ModelProto) -> ModelProto:
    """Scale and bias of LayerNormalization in the shape of what is normalised: its body does not broadcast them."""
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        new = NodeProto()
        new.CopyFrom(node)
        if node.op_type == "LayerNormalization":
            shape = f"{node.output[0]}/shape"
            nodes.append(helper.make_node("Shape", node.input[:1], [shape],
                                          start=next((a.i for a in node.attribute if a.name == "axis"), -1)))
            for k, name in enumerate(node.input[1:], 1):
                if name:
                    new.input[k] = f"{node.output[0]}/whole{k}"
                    nodes.append(helper.make_node("Expand", [name, shape], [new.input[k]]))
        nodes.append(new)
    found = ModelProto()
    found.CopyFrom(model)
    del found.graph.node[:]
    found.graph.node.extend(nodes)
    return found


def _newest(model: ModelProto) -> ModelProto:
    """The model in the newest opset in which all its operators mean the same: bodies are written for new opsets only."""
    opset = model.opset_import[0].version
    for newer in range(onnx.defs.onnx_opset_version(), opset, -1):
        if all(_same_in(n.op_type, opset, newer) for n in model.graph.node):
            found = ModelProto()
            found.CopyFrom(model)
            found.opset_import[0].version = newer
            return found
    return model


def _same_in(op: str, opset: int, newer: int) -> bool:
    """Whether a newer opset has the operator with the same inputs, outputs and attributes: then it takes more types at most."""
    if not onnx.defs.has(op, newer, ""):
        return False
    old, new = (onnx.defs.get_schema(op, o, "") for o in (opset, newer))
    return bool(old.since_version == new.since_version) or (op not in _REDEFINED and _form(old) == _form(new))


#: Mean something else in a newer opset, in the same form.
_REDEFINED = {"OneHot", "Resize"}


def _form(schema: Any) -> tuple[Any, ...]:
    """What an operator takes and gives."""
    attributes = {name: (a.type, a.required, str(a.default_value)) for name, a in schema.attributes.items()}
    return [(i.name, i.option) for i in schema.inputs], [o.name for o in schema.outputs], attributes


def _with_defaults(node: NodeProto, opset: int) -> None:
    """Write out the schema's defaults: the inliner leaves attributes that are not there out of a body."""
    given = {a.name for a in node.attribute}
    if not node.domain and onnx.defs.has(node.op_type, opset, ""):
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        node.attribute.extend(a.default_value for name, a in schema.attributes.items()
                              if name not in given and a.default_value.type)


def widened(model: ModelProto) -> ModelProto:
    """The model with float64 in the place of float32, in its inputs, constants and attributes."""
    wide = ModelProto()
    wide.CopyFrom(model)
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in wide.graph.initializer:
        _widen(tensor)
    for node in wide.graph.node:
        for a in node.attribute:
            if a.name == "value":
                _widen(a.t)
            if a.name in ("to", "dtype", "stash_type") and a.i == TensorProto.FLOAT:
                a.i = TensorProto.DOUBLE
    return wide


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
