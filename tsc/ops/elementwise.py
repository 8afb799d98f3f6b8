"""Arithmetic element by element, with NumPy broadcasting, and the helper that every such operator is made with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tsc.errors import InternalError, ModelError, UnsupportedError
from tsc.ir import Node, TensorType
from tsc.ops.base import Builder, InferContext, Lowering, OpDef, PatternKind, Sample
from tsc.ops.samples import bools, floats, ints, scalar
from tsc.ops.shapes import (
    NUMBERS,
    Values,
    all_contents,
    broadcast,
    broadcast_read,
    canonical,
    contents_map,
    element_type,
    is_float,
    same_types,
    tensor,
    where,
)
from tsc.sym import ONE, ZERO, ShapeEnv, SymExpr, sym_max, sym_min
from tsc.te.expr import BOOL, Cast, Const, Expr, call, select

#: A body: the node's context and the operands' elements (None for an absent one) to the output's element.
Body = Callable[[InferContext, Sequence[Expr | None]], Expr]
#: A value rule for one element: None where it cannot be decided.
Rule = Callable[..., SymExpr | None]
#: Symbolic dtype of the output: an input's number, or a dtype name.
Result = int | str
SampleList = Callable[[], Sequence[Sample]]


def elementwise(name: str, body: Body, *, samples: SampleList, result: Result = 0, rule: Rule | None = None, required: int = 1,
                check: Callable[[InferContext], None] | None = None, reads: tuple[str, ...] = (),
                associative: bool = False, neutral: tuple[float | None, ...] = (), linear: tuple[int, ...] = ()) -> OpDef:
    """An operator whose output element is `body` of the broadcast inputs' elements.

    `rule(env, *elements)` computes symbolic contents; `result` is the input whose dtype the output has, or the dtype itself;
    `required` is how many inputs there must be (-1: all that the node lists), `check` raises ModelError for inputs that do not
    fit each other, in which case the first alone gives the shape; `reads` are its attributes.
    """
    def types(ctx: InferContext) -> tuple[TensorType, ...]:
        for i in range(len(ctx.types) if required < 0 else required):
            ctx.type(i)
        if check is not None:
            check(ctx)
        shapes = [canonical(ctx, i) for i in range(len(ctx.types)) if ctx.has(i)]
        dtype = result if isinstance(result, str) else ctx.type(result).dtype
        return tensor(dtype, broadcast(ctx.env, shapes, where(ctx)))

    def contents(ctx: InferContext) -> Values:
        found = all_contents(ctx)
        # floats round; integer fmod has the sign of the dividend, unlike the `%` of sizes
        if found is None or rule is None or any(is_float(t.dtype) for t in ctx.types if t) or ctx.attr("fmod", 0):
            return (None,)
        return (contents_map(lambda *values: rule(ctx.env, *values), *found),)

    def te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
        count = range(len(lowering.infer.types))
        return body(lowering.infer, [broadcast_read(lowering, i, at) if lowering.infer.has(i) else None for i in count])

    return OpDef(name, PatternKind.ELEMENTWISE, types, contents=contents if rule else None, te=te, samples=samples, reads=reads,
                 associative=associative, neutral=neutral, linear=linear, broadcasts_from=0 if check is None else 1)


def intrinsic(fn: str) -> Body:
    """The body that applies one intrinsic to the operands in order."""
    return lambda ctx, args: call(fn, *(a for a in args if a is not None))


def literal(value: float, like: Expr) -> Const:
    """`value` in the dtype of `like`."""
    return Const(float(value) if is_float(like.dtype) else int(value), like.dtype)


def operand(args: Sequence[Expr | None], i: int) -> Expr | None:
    """Operand `i`, or None when it is absent."""
    return args[i] if i < len(args) else None


def required(args: Sequence[Expr | None], i: int) -> Expr:
    """Operand `i`, which the shape rule has seen."""
    found = operand(args, i)
    if found is None:
        raise InternalError(f"an elementwise operator without its operand {i} has passed its shape rule")
    return found


def first(args: Sequence[Expr | None]) -> Expr:
    """The first operand."""
    return required(args, 0)


# -- value rules -----------------------------------------------------------------------------------------------

def truncated_quotient(env: ShapeEnv, a: SymExpr, b: SymExpr) -> SymExpr | None:
    """`a / b` of integers as ONNX means it, where its sign is known."""
    x, y = a.as_int(), b.as_int()
    if y == 0:
        return None
    if x is not None and y is not None:
        return SymExpr.of(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1))
    quotient = a // b
    if quotient * b == a or (env.prove_le(0, a) and env.prove_lt(0, b)):
        return quotient
    return None


def greater(env: ShapeEnv, a: SymExpr, b: SymExpr) -> SymExpr:
    """The greater of two sizes, one of them where that is provable."""
    return a if env.prove_le(b, a) else b if env.prove_le(a, b) else sym_max(a, b)


def lesser(env: ShapeEnv, a: SymExpr, b: SymExpr) -> SymExpr:
    """The lesser of two sizes, one of them where that is provable."""
    return a if env.prove_le(a, b) else b if env.prove_le(b, a) else sym_min(a, b)


def _absolute(env: ShapeEnv, a: SymExpr) -> SymExpr | None:
    return a if env.prove_le(0, a) else -a if env.prove_le(a, 0) else None


def _sign(env: ShapeEnv, a: SymExpr) -> SymExpr | None:
    if env.prove_lt(0, a):
        return ONE
    return -ONE if env.prove_lt(a, 0) else ZERO if env.prove_eq(a, 0) else None


def _power(env: ShapeEnv, a: SymExpr, b: SymExpr) -> SymExpr | None:
    exponent = b.as_int()
    if exponent is None or not 0 <= exponent <= 8:
        return None
    result = ONE
    for _ in range(exponent):
        result = result * a
    return result


def _remainder(env: ShapeEnv, a: SymExpr, b: SymExpr) -> SymExpr | None:
    return None if b.as_int() == 0 else a % b


def _fold(step: Callable[[ShapeEnv, SymExpr, SymExpr], SymExpr]) -> Rule:
    def rule(env: ShapeEnv, *values: SymExpr) -> SymExpr:
        result = values[0]
        for value in values[1:]:
            result = step(env, result, value)
        return result
    return rule


# -- bodies that are more than one intrinsic -------------------------------------------------------------------

def _chain(fn: str) -> Body:
    """`fn` over any number of operands, as a balanced tree: an expression no deeper than it need be, and small errors."""
    def body(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
        parts = [required(args, i) for i in range(len(args))]
        while len(parts) > 1:
            pairs = [call(fn, a, b) for a, b in zip(parts[::2], parts[1::2])]
            parts = pairs + parts[2 * len(pairs):]
        return parts[0]
    return body


def _mean(builder: Builder) -> tuple[str, ...]:
    ctx = builder.infer
    count = builder.constant(np.array(len(ctx.types), ctx.type(0).dtype))
    return (builder.emit("Div", builder.emit("Sum", *ctx.node.inputs), count),)


def _pow(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
    base, exponent = first(args), required(args, 1)
    known = ctx.constants[1]
    if known is not None and known.size == 1 and is_float(base.dtype):
        match float(known.ravel()[0]):
            case 1.0:
                return base
            case 2.0:
                return call("mul", base, base)
            case 3.0:
                return call("mul", call("mul", base, base), base)
            case 0.5:  # where the root of the least value is not a number, its power is one
                return select(call("eq", base, literal(-np.inf, base)), literal(np.inf, base), call("sqrt", base))
            case -1.0:
                return call("reciprocal", base)
    if is_float(base.dtype):
        return call("pow", base, _as(exponent, base.dtype))
    wide = "float64" if is_float(exponent.dtype) else "uint64" if exponent.dtype == "uint64" else "int64"
    if exponent.dtype == base.dtype:
        return call("pow", base, exponent)
    return _as(call("pow", _as(base, wide), _as(exponent, wide)), base.dtype)


def _as(value: Expr, dtype: str) -> Expr:
    return value if value.dtype == dtype else Cast(value, dtype)


def _mod(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
    return intrinsic("fmod" if ctx.attr("fmod", 0) else "mod")(ctx, args)


def _reciprocal(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
    return call("div", literal(1, first(args)), first(args))


def _clip(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
    result = first(args)
    low = operand(args, 1) if ctx.attr("min") is None else literal(ctx.attr("min"), result)
    high = operand(args, 2) if ctx.attr("max") is None else literal(ctx.attr("max"), result)
    if low is not None:
        result = call("max", result, low)
    return result if high is None else call("min", result, high)


def _clip_bounds(ctx: InferContext) -> None:
    for i, what in ((1, "min"), (2, "max")):
        shape = canonical(ctx, i) if ctx.has(i) else ()
        if any(d != ONE for d in shape) or len(shape) > ctx.type(0).rank:  # the output has the shape of what is clipped
            raise ModelError(f"{where(ctx)} has a {what} of shape {ctx.type(i)}, expected a scalar")


def _is_inf(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
    value, zero = first(args), literal(0, first(args))
    tests = [Const(False, BOOL)]
    sides: list[Expr] = []
    if ctx.attr("detect_positive", 1):
        sides.append(call("and", call("isinf", value), call("gt", value, zero)))
    if ctx.attr("detect_negative", 1):
        sides.append(call("and", call("isinf", value), call("lt", value, zero)))
    if not sides:
        return tests[0]
    return sides[0] if len(sides) == 1 else call("or", *sides)


def _where(ctx: InferContext, args: Sequence[Expr | None]) -> Expr:
    return select(required(args, 0), required(args, 1), required(args, 2))


def _where_rule(env: ShapeEnv, condition: SymExpr, yes: SymExpr, no: SymExpr) -> SymExpr | None:
    decided = condition.as_int()
    if decided is None:
        return yes if yes == no else None
    return yes if decided else no


# -- Cast and Identity: the output's dtype or layout is their point --------------------------------------------

def _cast_target(ctx: InferContext) -> str:
    return ctx.type(1).dtype if ctx.node.op == "CastLike" else element_type(ctx, ctx.attr("to"))


def _cast_types(ctx: InferContext) -> tuple[TensorType, ...]:
    return tensor(_cast_target(ctx), canonical(ctx, 0))


def _cast_contents(ctx: InferContext) -> Values:
    """A size as a float is what Range takes; back from a float, where rounding may have changed it, it is data."""
    source, target = ctx.contents[0], _cast_target(ctx)
    if source is None or (is_float(ctx.type(0).dtype) and not is_float(target)):
        return (None,)
    if target != BOOL:
        return (source,)

    def truth(value: SymExpr) -> SymExpr | None:
        return ONE if ctx.env.prove_ne(value, 0) else ZERO if ctx.env.prove_eq(value, 0) else None
    return (contents_map(truth, source),)


def _cast_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    value, target = lowering.read(0, at), _cast_target(lowering.infer)
    return value if value.dtype == target else Cast(value, target)


def _same_contents(ctx: InferContext) -> Values:
    return (ctx.contents[0],)


def _same_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return lowering.read(0, at)


def _dropout_types(ctx: InferContext) -> tuple[TensorType, ...]:
    for i, what in ((1, "ratio"), (2, "training_mode")):
        if ctx.has(i) and any(d != ONE for d in canonical(ctx, i)):
            raise ModelError(f"{where(ctx)} has a {what} of shape {ctx.type(i)}, expected a scalar")
    training = ctx.constants[2] if ctx.has(2) else np.array(False)
    ratio = ctx.constants[1] if ctx.has(1) else np.array(0.5)
    if training is None or (bool(training) and (ratio is None or ratio.item() > 0)):
        raise UnsupportedError(f"{where(ctx)} is in training mode, expected inference; export the model with eval()")
    shape = canonical(ctx, 0)
    return (TensorType(ctx.type(0).dtype, shape), TensorType(BOOL, shape))[:max(1, len(ctx.node.outputs))]


def _dropout_te(lowering: Lowering, output: int, at: tuple[Expr, ...]) -> Expr:
    return Const(True, BOOL) if output == 1 else lowering.read(0, at)


def copy_node(source: str, output: str, name: str) -> Node:
    """A node that makes `output` a copy of `source`."""
    return Node("Identity", (source,), (output,), {}, name)


def is_copy(node: Node) -> bool:
    """Whether a node's output is a copy of its input."""
    return node.op == "Identity"


def cast_node(source: str, output: str, dtype: str, name: str) -> Node:
    """A node that converts `source` to `dtype`."""
    return Node("Cast", (source,), (output,), {"to": NUMBERS[dtype]}, name)


def arithmetic_node(fn: Literal["add", "sub", "mul"], left: str, right: str, output: str, name: str) -> Node:
    """A node that combines two values of one dtype."""
    return Node({"add": "Add", "sub": "Sub", "mul": "Mul"}[fn], (left, right), (output,), {}, name)


def _expect_float(ctx: InferContext) -> None:
    """The schema allows integers, but nothing says how to round."""
    if not is_float(ctx.type(0).dtype):
        raise UnsupportedError(f"{where(ctx)} is of {ctx.type(0).dtype}, expected a float type; cast its input")


# -- samples ---------------------------------------------------------------------------------------------------

def pairs(*dtypes: str) -> SampleList:
    """Two operands: equal shapes, scalars, and broadcasting both ways."""
    def make() -> Sequence[Sample]:
        shapes = (((3, 5), (3, 5)), ((2, 1, 4), (3, 1)), ((), (7,)), ((1,), (1, 1)))
        source: dict[str, Callable[..., Any]] = {"float32": floats, "int64": lambda *s: ints(*s, low=1, high=9), "bool": bools}
        return [Sample([source[d](*a), source[d](*b) + 0 if d != "bool" else source[d](*b)])
                for d in dtypes for a, b in shapes]
    return make


def singles(low: float = -2.0, high: float = 2.0, **attrs: Any) -> SampleList:
    """One float operand of odd shapes."""
    return lambda: [Sample([floats(*s, low=low, high=high)], attrs) for s in ((3, 5), (1, 7), (), (2, 1, 3))]


def _mixed_pow() -> Sequence[Sample]:
    base = floats(3, 5, low=0.1)
    known = [Sample([base, scalar(e)]) for e in (1.0, 2.0, 3.0, 0.5, -1.0, 2.5)]
    return [*known, Sample([base, floats(5)]), Sample([base, ints(5, low=0, high=3)]),
            Sample([ints(4, low=0, high=5), ints(4, low=0, high=4)]), Sample([ints(4, low=1, high=5), floats(4, low=0)])]


def _mods() -> Sequence[Sample]:
    divisors = np.array([3, -4, 5], np.int64)
    return [Sample([ints(4, 3), divisors]), Sample([ints(4, 3), divisors], {"fmod": 1}),
            Sample([floats(4, 3, low=-9, high=9), floats(3, low=1)], {"fmod": 1})]


def _clips() -> Sequence[Sample]:
    x = floats(3, 5)
    return [Sample([x, scalar(-0.5), scalar(0.75)]), Sample([x, scalar(0.0)]), Sample([x, None, scalar(0.5)]), Sample([x])]


def _lists() -> Sequence[Sample]:
    return [Sample([floats(3, 5)]), Sample([floats(3, 5), floats(5)]), Sample([floats(3, 1), floats(5), floats(1, 1)])]


def _specials() -> Sequence[Sample]:
    x = np.array([[0.0, np.nan, np.inf], [-np.inf, 1.0, -1.0]], np.float32)
    return [Sample([x])]


def _infinities() -> Sequence[Sample]:
    x = _specials()[0].inputs[0]
    return [Sample([x], attrs) for attrs in ({}, {"detect_negative": 0}, {"detect_positive": 0})]


def _casts() -> Sequence[Sample]:
    x = floats(3, 5, low=-9, high=9)
    return [Sample([x], {"to": 7}), Sample([x], {"to": 11}), Sample([ints(2, 3)], {"to": 1}), Sample([ints(2, 3)], {"to": 9}),
            Sample([bools(4)], {"to": 1}), Sample([bools(4)], {"to": 6}), Sample([floats(3, low=0, high=99)], {"to": 2})]


def _wheres() -> Sequence[Sample]:
    return [Sample([bools(3, 5), floats(3, 5), floats(5)]), Sample([bools(3, 1), floats(), floats(1, 5)]),
            Sample([bools(1), ints(4), ints(1)])]


def _signed() -> Sequence[Sample]:
    return [Sample([floats(3, 5)]), Sample([ints(2, 3)])]


def _rounds() -> Sequence[Sample]:
    return [Sample([np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.4, 2.6], np.float32)])]


OPS: tuple[OpDef, ...] = (
    elementwise("Add", intrinsic("add"), samples=pairs("float32", "int64"), rule=lambda env, a, b: a + b, required=2,
                neutral=(-0.0, -0.0)),
    elementwise("Sub", intrinsic("sub"), samples=pairs("float32", "int64"), rule=lambda env, a, b: a - b, required=2,
                neutral=(None, 0)),
    elementwise("Mul", intrinsic("mul"), samples=pairs("float32", "int64"), rule=lambda env, a, b: a * b, required=2,
                neutral=(1, 1), linear=(0, 1)),
    elementwise("Div", intrinsic("div"), rule=truncated_quotient, samples=lambda: [
        *pairs("int64")(), Sample([ints(4, 3), np.array([3, -2, 5])]), Sample([floats(2, 3), floats(3, low=1)])], required=2,
                neutral=(None, 1), linear=(0,)),
    elementwise("Pow", _pow, samples=_mixed_pow, rule=_power, required=2),
    elementwise("Mod", _mod, samples=_mods, rule=_remainder, reads=("fmod",), required=2),
    elementwise("Max", _chain("max"), samples=_lists, rule=_fold(greater), required=-1, associative=True),
    elementwise("Min", _chain("min"), samples=_lists, rule=_fold(lesser), required=-1, associative=True),
    elementwise("Sum", _chain("add"), samples=_lists, rule=_fold(lambda env, a, b: a + b), required=-1, associative=True),
    replace(elementwise("Mean", _chain("add"), samples=_lists, required=-1), te=None, decompose=_mean),
    elementwise("Neg", intrinsic("neg"), samples=_signed, rule=lambda env, a: -a, linear=(0,)),
    elementwise("Abs", intrinsic("abs"), samples=_signed, rule=_absolute),
    elementwise("Sign", intrinsic("sign"), samples=_signed, rule=_sign),
    elementwise("Sqrt", intrinsic("sqrt"), samples=singles(0.0)),
    elementwise("Reciprocal", _reciprocal, samples=singles(0.5)),
    elementwise("Exp", intrinsic("exp"), samples=singles()),
    elementwise("Log", intrinsic("log"), samples=singles(0.1)),
    elementwise("Erf", intrinsic("erf"), samples=singles(), check=_expect_float),
    elementwise("Sin", intrinsic("sin"), samples=singles()),
    elementwise("Cos", intrinsic("cos"), samples=singles()),
    elementwise("Floor", intrinsic("floor"), samples=singles()),
    elementwise("Ceil", intrinsic("ceil"), samples=singles()),
    elementwise("Round", intrinsic("round"), samples=_rounds),
    elementwise("Clip", _clip, samples=_clips, reads=("min", "max"), check=_clip_bounds),
    elementwise("IsNaN", intrinsic("isnan"), samples=_specials, result=BOOL),
    elementwise("IsInf", _is_inf, samples=_infinities, result=BOOL, reads=("detect_positive", "detect_negative")),
    elementwise("Where", _where, samples=_wheres, result=1, rule=_where_rule, required=3),
    OpDef("Cast", PatternKind.ELEMENTWISE, _cast_types, contents=_cast_contents, te=_cast_te, samples=_casts,
          reads=("to",), ignores=("saturate", "round_mode"), converts=True),
    OpDef("CastLike", PatternKind.ELEMENTWISE, _cast_types, contents=_cast_contents, te=_cast_te, static_inputs=(1,),
          samples=lambda: [Sample([floats(3, 2), ints(1)])], ignores=("saturate", "round_mode"),
          converts=True),
    OpDef("Identity", PatternKind.ELEMENTWISE, same_types, contents=_same_contents, te=_same_te, is_view=True,
          samples=singles()),
    OpDef("Dropout", PatternKind.ELEMENTWISE, _dropout_types, te=_dropout_te, static_inputs=(1, 2),
          samples=lambda: [Sample([floats(3, 5)]), Sample([floats(3, 5)], outputs=2)], ignores=("ratio", "seed")),
)
