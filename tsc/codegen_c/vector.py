"""Expressions over the lanes of a vector loop, in GCC vector extensions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tsc.codegen_c.scalar import Scope, flatten, multiplied_and_added, neighbours, offset_text, scalar, sym_text
from tsc.codegen_c.types import c_type, vector_type, zeros
from tsc.errors import InternalError
from tsc.loop_ir.cpu.vector_rules import SPACES, WHOLE, LaneRange, half_of, is_affine, lane_range, looks_at_data
from tsc.sym import ZERO, SymExpr
from tsc.sym.expr import coefficient_of
from tsc.te.expr import BOOL, INDEX, Buffer, Call, Cast, Const, Expr, Load, Var, item_bytes, substitute, variables, walk
from tsc.te.index import to_sym

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
#: The integer as wide as each dtype: what comparing two vectors of it gives.
_BITS = {"float32": "int32", "int32": "int32", "uint32": "int32", "float64": "int64", "int64": "int64", "uint64": "int64",
         "int8": "int8", "uint8": "int8", "int16": "int16", "uint16": "int16", BOOL: "int32"}


@dataclass(frozen=True, slots=True)
class Lanes:
    """The vector loop being emitted: its variable, its trip count, where it is masked how many of its lanes are active, and
    under a condition that holds in a run of lanes the first of them, the one after the last, whether there is one at all (what
    does not vary stands apart, so that runs alike in the rest share their masks), and how deep such runs nest."""

    var: str
    count: int
    active: str = ""
    first: str = ""
    last: str = ""
    when: str = "1"
    depth: int = 0


def vector(expr: Expr, lanes: Lanes, scope: Scope) -> str:
    """C text of `expr` for all lanes at once."""
    varies = any(isinstance(n, Var) and n.name == lanes.var for n in walk(expr))
    if not varies and not _is_register(expr, scope):
        return splat(_once(scalar(expr, scope), expr, lanes), expr.dtype, lanes.count)
    if expr.dtype == INDEX and varies and is_affine(expr, lanes.var):
        return _index(expr, lanes, scope)
    match expr:
        case Load():
            return _load(expr, lanes, scope)
        case Cast(value=value, dtype=dtype):
            return _cast(vector(value, lanes, scope), value.dtype, dtype, lanes.count)
        case Call(fn=fn, args=args):
            return _call(expr, fn, args, lanes, scope)
    raise InternalError(f"cannot vectorize {expr!r}")


def _once(text: str, expr: Expr, lanes: Lanes) -> str:
    """The text of a scalar for all lanes; what it reads under a condition is read only where that holds in a lane."""
    return f"({lanes.when} && {lanes.first} < {lanes.last} ? {text} : 0)" if lanes.first and looks_at_data(expr) else text


def splat(text: str, dtype: str, count: int) -> str:
    """The scalar in every lane."""
    kind = vector_type(dtype, count)
    if dtype == BOOL:
        return f"TSC_SPLAT({kind}, -(int32_t)({text} != 0))"
    return f"TSC_SPLAT({kind}, ({c_type(dtype)}){text})"


def store(buffer: Buffer, index: tuple[Expr, ...], value: Expr, lanes: Lanes, scope: Scope) -> str:
    """C text of a store of all lanes; the access is unit-stride in the lanes."""
    text = vector(value, lanes, scope)
    if buffer.name in scope.registers:
        name = register(buffer, index, lanes, scope)
        return f"{name} = {_masked(text, name, buffer.dtype, lanes) if lanes.active else text};"
    leaves: dict[str, Expr] = {}
    offset = flatten(buffer, index, scope, leaves)
    if coefficient_of(offset, lanes.var) != SymExpr.of(1):
        raise InternalError(f"a vector store to {buffer} is not contiguous")
    start = sym_text(scope.facts.reduce(offset.substitute({lanes.var: SymExpr.of(0)})), leaves, scope)
    if buffer.dtype == BOOL:
        text = f"tsc_uint8_of_int32x{lanes.count}({text} & 1)"
    place, kind = f"{scope.name(f'buffer {buffer.name}')} + {start}", f"{buffer.dtype}x{lanes.count}"
    if lanes.active:
        return f"tsc_store_{kind}({place}, {lanes.active}, {text});"
    return f"*(tsc_{kind}u *)({place}) = {text};"


def _masked(text: str, old: str, dtype: str, lanes: Lanes) -> str:
    """`text` in the active lanes, what was there in the others."""
    mask = vector_type(_BITS[dtype], lanes.count)
    iota = f"({mask}){{{', '.join(map(str, range(lanes.count)))}}}"
    chosen = f"({iota} < {splat(lanes.active, _BITS[dtype], lanes.count)})"
    return f"TSC_BLEND({mask}, {vector_type(dtype, lanes.count)}, {chosen}, {text}, {old})"


def register(buffer: Buffer, index: tuple[Expr, ...], lanes: Lanes, scope: Scope) -> str:
    """The name of the vector register that an access means."""
    return register_at(buffer, flatten(buffer, index, scope, {}), {lanes.var: 0}, lanes, scope)


def register_at(buffer: Buffer, offset: SymExpr, at: Mapping[str, int], lanes: Lanes, scope: Scope) -> str:
    """The name of the vector register at an offset, whose variables are `at` those of its first lane."""
    first = offset.evaluate(at) if offset.dims() <= at.keys() else None
    if first is None or first % lanes.count:
        raise InternalError(f"an access to register buffer {buffer} is not one whole register")
    return f"{scope.name(f'buffer {buffer.name}')}_{first // lanes.count}"


def _is_register(expr: Expr, scope: Scope) -> bool:
    return any(isinstance(n, Load) and n.buffer.name in scope.registers for n in walk(expr))


def _index(expr: Expr, lanes: Lanes, scope: Scope) -> str:
    leaves: dict[str, Expr] = {}
    sym = scope.facts.reduce(to_sym(expr, leaves))
    factor = coefficient_of(sym, lanes.var) or ZERO
    kind = vector_type(INDEX, lanes.count)
    iota = f"({kind}){{{', '.join(map(str, range(lanes.count)))}}}"
    base = scope.facts.reduce(sym.substitute({lanes.var: SymExpr.of(0)}))
    scaled = iota if factor == SymExpr.of(1) else f"{iota} * {sym_text(factor, leaves, scope)}"
    return f"({splat(sym_text(base, leaves, scope), INDEX, lanes.count)} + {scaled})"


def _load(load: Load, lanes: Lanes, scope: Scope) -> str:
    buffer, index = load.buffer, load.index
    if buffer.name in scope.registers:
        return register(buffer, index, lanes, scope)
    leaves: dict[str, Expr] = {}
    offset = flatten(buffer, index, scope, leaves)
    factor = coefficient_of(offset, lanes.var)
    name = scope.name(f"buffer {buffer.name}")
    apart = not any(lanes.var in variables(leaf) for leaf in leaves.values())
    if factor == SymExpr.of(0) and apart:
        return splat(_once(f"{name}[{sym_text(offset, leaves, scope)}]", load, lanes), buffer.dtype, lanes.count)
    kind = f"{buffer.dtype}x{lanes.count}"
    half = half_of(offset, lanes.var)
    if half is not None and not lanes.active:
        text = f"tsc_twice_{kind}({name} + {sym_text(half, leaves, scope)})"
        return f"(-tsc_int32_of_uint8x{lanes.count}({text}))" if buffer.dtype == BOOL else text
    start = sym_text(scope.facts.reduce(offset.substitute({lanes.var: SymExpr.of(0)})), leaves, scope)
    space = factor.as_int() if factor is not None and apart else None
    first, last = lanes.first or "0", lanes.last or lanes.active or str(lanes.count)
    if factor == SymExpr.of(1):
        text = f"*(const tsc_{kind}u *)({name} + {start})"
        if lanes.first:
            text = f"tsc_range_{kind}({name} + {start}, {first}, {last}, {lanes.when})"
        elif lanes.active:
            text = f"tsc_load_{kind}({name} + {start}, {lanes.active})"
    elif space in SPACES:
        text = f"tsc_spaced_{kind}({name} + {start}, {space}, {first}, {last}, {lanes.when})"
    else:  # under a condition, only a load that is harmless in all lanes may have a stride (loop_ir/cpu/vector_rules.py)
        if lanes.active:
            raise InternalError(f"a masked load of {buffer} has a stride")
        texts = [sym_text(scope.facts.reduce(offset.substitute({lanes.var: SymExpr.of(n)})), leaves, scope) if apart else
                 offset_text(buffer, tuple(substitute(i, {lanes.var: Const(n, INDEX)}) for i in index), scope)
                 for n in range(lanes.count)]
        picked = [f"{name}[{text}]" for text in texts]
        sign = "-" if buffer.dtype == BOOL else ""
        return f"(({vector_type(buffer.dtype, lanes.count)}){{{', '.join(sign + p for p in picked)}}})"  # commas, for macros
    return f"(-tsc_int32_of_uint8x{lanes.count}({text}))" if buffer.dtype == BOOL else f"({text})"


def _cast(text: str, source: str, dtype: str, count: int) -> str:
    if source == dtype:
        return text
    if source == BOOL:
        text, source = f"(-{text})", "int32"
    if source == "float32" and dtype in WHOLE:
        text, source = f"tsc_to_int32_float32x{count}({text})", "int32"
    # what compilers do in few instructions goes through int32: bytes, and what is twice or four times as wide
    if item_bytes(source) < 4 and (dtype == BOOL or item_bytes(dtype) >= 4):
        text, source = _converted(text, source, "int32", count), "int32"
    if dtype == BOOL:
        return _mask(f"({text} != 0)", source, count)
    if item_bytes(source) == 8 and item_bytes(dtype) == 1:
        text, source = _converted(text, source, "int32", count), "int32"
    return text if source == dtype else _converted(text, source, dtype, count)


def _converted(text: str, source: str, dtype: str, count: int) -> str:
    """A conversion of vectors; those between bytes and int32 are the header's."""
    if {source, dtype} & {"int8", "uint8"} and "int32" in (source, dtype):
        return f"tsc_{dtype}_of_{source}x{count}({text})"
    return f"__builtin_convertvector({text}, {vector_type(dtype, count)})"


def _choice(yes: Expr, no: Expr, run: LaneRange, lanes: Lanes, scope: Scope) -> str:
    """`yes` in the run of lanes where the condition holds, `no` in the others; loads of `yes` touch no others."""
    if isinstance(yes, Call) and yes.fn == "select" and yes.args[2] == no:
        inner = lane_range(yes.args[0], lanes.var)
        if inner is not None:
            both = LaneRange(run.lows + inner.lows, run.highs + inner.highs, run.others + inner.others)
            return _choice(yes.args[1], no, both, lanes, scope)
    whole = not (run.lows or run.highs or lanes.first or lanes.active)
    if whole and isinstance(yes, Load) and yes.dtype != BOOL and isinstance(no, Const) and neighbours(yes, lanes.var, scope):
        return _whole_or_none(yes, no, run, lanes, scope)
    first, last, when = (f"tsc_{part}{lanes.depth}" for part in ("first", "last", "when"))
    lows = [sym_text(scope.facts.reduce(x), {}, scope) for x in run.lows] + [lanes.first or "0"]
    highs = [sym_text(scope.facts.reduce(x), {}, scope) for x in run.highs] + [lanes.last or lanes.active or str(lanes.count)]
    low, high = (_folded(f"tsc_{fn}_int64", texts) for fn, texts in (("max", lows), ("min", highs)))
    holds = " && ".join([*([lanes.when] if lanes.when != "1" else []), *(scalar(c, scope) for c in run.others)]) or "1"
    inside = replace(lanes, first=first, last=last, when=when, depth=lanes.depth + 1)
    text = vector(yes, inside, scope)
    if not (isinstance(yes, Load) and any(n.name == lanes.var for n in walk(yes) if isinstance(n, Var))
            and yes.buffer.name not in scope.registers and no == Const(0, yes.dtype)):
        bits = _BITS[yes.dtype]
        mask = vector_type(bits, lanes.count)
        iota = f"({mask}){{{', '.join(map(str, range(lanes.count)))}}}"
        chosen = " & ".join((f"({iota} >= {splat(first, bits, lanes.count)})", f"({iota} < {splat(last, bits, lanes.count)})",
                             splat(f"-{when}", bits, lanes.count)))
        text = f"TSC_BLEND({mask}, {vector_type(yes.dtype, lanes.count)}, ({chosen}), {text}, {vector(no, lanes, scope)})"
    return f"({{ const int64_t {first} = {low}, {last} = {high}, {when} = {holds}; {text}; }})"


def _whole_or_none(yes: Load, no: Const, run: LaneRange, lanes: Lanes, scope: Scope) -> str:
    """A vector that is read where a condition holds that all lanes share. Zeros are read as well, from elsewhere, so that an
    instruction may take either from memory."""
    holds, kind = " && ".join(scalar(c, scope) for c in run.others) or "1", f"{yes.dtype}x{lanes.count}"
    if elsewhere := zeros(no.value, no.dtype):
        place = scalar(substitute(yes, {lanes.var: Const(0, INDEX)}), scope)
        return f"(*(const tsc_{kind}u *)({holds} ? &{place} : {elsewhere}))"
    kind = vector_type(yes.dtype, lanes.count)
    return f"({holds} ? ({kind}){vector(yes, lanes, scope)} : ({kind}){vector(no, lanes, scope)})"


def _folded(fn: str, texts: list[str]) -> str:
    text = texts[0]
    for other in texts[1:]:
        text = f"{fn}({text}, {other})"
    return text


def _call(expr: Call, fn: str, args: tuple[Expr, ...], lanes: Lanes, scope: Scope) -> str:
    if fn == "select" and (run := lane_range(args[0], lanes.var)) is not None:
        return _choice(args[1], args[2], run, lanes, scope)
    dtype, count = args[-1].dtype, lanes.count
    if (parts := multiplied_and_added(expr)) is not None:
        return f"tsc_fma_{dtype}x{count}({', '.join(vector(part, lanes, scope) for part in parts)})"
    texts = [vector(a, lanes, scope) for a in args]
    first = texts[0]
    if fn in _COMPARE:
        return _mask(f"({first} {_COMPARE[fn]} {texts[1]})", dtype, count)
    if fn in _LOGIC:
        return f"({first} {_LOGIC[fn]} {texts[1]})"
    match fn:
        case "isnan":
            return _mask(f"({first} != {first})", dtype, count)
        case "not":
            return f"(~{first})"
        case "neg":
            return f"(-({first}))"
        case "select":
            bits = _BITS[dtype]
            mask = first if bits == "int32" else _converted(first, "int32", bits, count)
            kinds = f"{vector_type(bits, count)}, {vector_type(dtype, count)}"
            return f"TSC_BLEND({kinds}, {mask}, {texts[1]}, {texts[2]})"
    if fn in _INFIX:
        return f"({first} {_INFIX[fn]} {texts[1]})"
    return f"tsc_{fn}_{dtype}x{count}({', '.join(texts)})"


def _mask(text: str, dtype: str, count: int) -> str:
    """The result of comparing `dtype`s, as a mask of int32 lanes."""
    return text if _BITS[dtype] == "int32" else _converted(text, _BITS[dtype], "int32", count)
