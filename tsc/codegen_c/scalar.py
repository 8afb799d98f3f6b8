"""Scalar expressions in C, and the flattening of tensor accesses to one offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import copysign

from tsc.codegen_c.types import c_type, identifier, literal
from tsc.errors import InternalError
from tsc.poly.promotion.layout import layout_of
from tsc.sym import ONE, SymExpr, product
from tsc.sym.expr import Dim, coefficient_of
from tsc.sym.facts import Facts
from tsc.te.expr import INDEX, Buffer, Call, Cast, CheckedIndex, Const, Expr, Load, Size, Var, variables
from tsc.te.index import to_expr, to_sym

_INFIX = {"add": "+", "sub": "-", "mul": "*", "bitand": "&", "bitor": "|", "bitxor": "^"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_DIVIDE = {"//": "/", "%": "%"}
_SIZE_FUNCTIONS = {"//": "tsc_floordiv_int64", "%": "tsc_mod_int64", "min": "tsc_min_int64", "max": "tsc_max_int64"}
_LOGIC = {"and": "&&", "or": "||", "xor": "!="}
_ASKED = {"and": "&", "or": "|", "xor": "!="}


class Dialect:
    """How C has it; a language that is much like C changes some of that."""

    def literal(self, value: int | float | bool, dtype: str) -> str:
        """A literal of exactly `value`."""
        return literal(value, dtype)

    def load(self, load: Load, scope: Scope) -> str:
        """An element of a buffer."""
        return f"{scope.name(f'buffer {load.buffer.name}')}[{offset_text(load.buffer, load.index, scope)}]"

    def cast(self, text: str, source: str, dtype: str) -> str:
        """A conversion to another dtype."""
        target = c_type(dtype)
        if source == "float16":
            wide = f"tsc_from_half({text})"
            return wide if dtype == "float32" else self.cast(wide, "float32", dtype)
        if dtype == "float16":
            return f"tsc_half_of_{'double' if source == 'float64' else 'float'}({text})"
        if dtype == "bool":
            return f"({text} != 0)"
        if source.startswith("float") and not dtype.startswith("float"):
            wide = dtype if dtype in ("int64", "uint32", "uint64") else "int32"
            return f"(({target})tsc_to_{wide}({text}))"
        return f"(({target}){text})"

    def asks_both(self, expr: Call, scope: Scope) -> bool:
        """Whether of two conditions the second one is asked whatever the first one is."""
        return False

    def quotient(self, expr: Call, scope: Scope) -> str:
        """A quotient or a remainder of what is not negative, "" where `/` and `%` will do."""
        return ""

    def comparison(self, expr: Call, scope: Scope) -> str:
        """A comparison of indices, "" where its operator will do."""
        return ""

    def choice(self, expr: Call, scope: Scope) -> str:
        """One of two values, "" where `?` will do."""
        return ""

    def checked(self, value: str, extent: str, code: int) -> str:
        """An index from data, which ends the function with a status code where it is not within an extent."""
        return (f"({{ int64_t tsc_i = {value}; if (tsc_i < 0) tsc_i += {extent}; "
                f"if ((uint64_t)tsc_i >= (uint64_t){extent}) return {code}; tsc_i; }})")


C = Dialect()


@dataclass(frozen=True, slots=True)
class Scope:
    """Where code is being emitted: the C names in use, the facts about variables, the kernel's data errors, which local buffers
    are named vector registers (name -> lanes), how many bytes ahead panels are asked for (0: they are not), and in which
    language."""

    facts: Facts
    names: Mapping[str, str]
    messages: tuple[str, ...]
    registers: Mapping[str, int] = field(default_factory=dict)
    prefetch: int = 0
    dialect: Dialect = C

    def name(self, key: str) -> str:
        """The C name of a buffer ("buffer b"), a size ("size s") or a variable ("var v")."""
        return self.names[key]

    def with_name(self, kind: str, name: str) -> Scope:
        """This scope with a fresh C name for `name`."""
        base = identifier(name)
        taken = set(self.names.values())
        while base in taken:
            base += "_"
        return replace(self, names={**self.names, f"{kind} {name}": base})


def flatten(buffer: Buffer, index: tuple[Expr, ...], scope: Scope, leaves: dict[str, Expr]) -> SymExpr:
    """The element offset of an access, in the buffer's layout, reduced under the facts in scope."""
    parts = [to_sym(i, leaves) for i in (index if buffer.panel is None else layout_of(buffer).place(index))]
    total = SymExpr.of(0)
    for part, stride in zip(parts, _strides(buffer.stored)):
        total = total + part * stride
    return scope.facts.reduce(total)


def neighbours(load: Load, var: str, scope: Scope) -> bool:
    """Whether the elements that a load reads one after the other along a variable lie side by side in memory."""
    leaves: dict[str, Expr] = {}
    step = coefficient_of(flatten(load.buffer, load.index, scope, leaves), var)
    return step == ONE and load.buffer.name not in scope.registers and not any(var in variables(x) for x in leaves.values())


@lru_cache(maxsize=1024)
def _strides(shape: tuple[SymExpr, ...]) -> tuple[SymExpr, ...]:
    """Elements from one index to the next, for each dimension."""
    return tuple(product(shape[d + 1:]) for d in range(len(shape)))


def scalar(expr: Expr, scope: Scope) -> str:
    """C text of a scalar expression, parenthesised where it is not atomic."""
    match expr:
        case Var(name=name):
            return scope.name(f"var {name}")
        case Const(value=value, dtype=dtype):
            return scope.dialect.literal(value, dtype)
        case Size(value=value):
            return size_text(value, scope)
        case Load():
            return scope.dialect.load(expr, scope)
        case Cast(value=value, dtype=dtype):
            text = scalar(value, scope)
            return text if dtype == value.dtype else scope.dialect.cast(text, value.dtype, dtype)
        case CheckedIndex():
            return _checked(expr, scope)
        case Call():
            return _call(expr, scope)
    raise InternalError(f"cannot print {expr!r} in C")


def offset_text(buffer: Buffer, index: tuple[Expr, ...], scope: Scope) -> str:
    """C text of the element offset of an access."""
    return scalar(offset_expr(buffer, index, scope), scope)


def offset_expr(buffer: Buffer, index: tuple[Expr, ...], scope: Scope, size: int = 1) -> Expr:
    """The element offset of an access, or, where elements have a `size`, how many bytes that is: a sum, each term of them."""
    leaves: dict[str, Expr] = {}
    return to_expr(flatten(buffer, index, scope, leaves) * size, leaves, scope.facts)


def split_offset(buffer: Buffer, index: tuple[Expr, ...], scope: Scope, size: int) -> tuple[int, Expr]:
    """The same as what is constant in it and the rest."""
    leaves: dict[str, Expr] = {}
    whole = flatten(buffer, index, scope, leaves) * size
    constant = dict(whole.terms).get((), 0)
    return constant, to_expr(whole - constant, leaves, scope.facts)


def sym_text(sym: SymExpr, leaves: Mapping[str, Expr], scope: Scope) -> str:
    """C text of an index expression."""
    return scalar(to_expr(sym, leaves, scope.facts), scope)


def size_text(value: SymExpr, scope: Scope) -> str:
    """C text of an expression of sizes."""
    terms: list[str] = []
    for monomial, coefficient in value.terms:
        factors = [] if coefficient == 1 and monomial else [literal(coefficient, INDEX)]
        for atom in monomial:
            if isinstance(atom, Dim):
                factors.append(scope.name(f"size {atom}"))
            else:
                text, *rest = (size_text(a, scope) for a in atom.args)
                plain = atom.fn in _DIVIDE and _divides_plainly(atom.args[0], atom.args[1], scope)
                for arg in rest:
                    text = f"({text} {_DIVIDE[atom.fn]} {arg})" if plain else f"{_SIZE_FUNCTIONS[atom.fn]}({text}, {arg})"
                factors.append(text)
        terms.append(" * ".join(factors))
    if not terms:
        return "0"
    text = " + ".join(terms)
    return text if len(terms) == 1 and "*" not in text else f"({text})"


def _checked(check: CheckedIndex, scope: Scope) -> str:
    if check.what not in scope.messages:
        raise InternalError(f"no status code for: {check.what}")
    code = scope.messages.index(check.what) + 1
    return scope.dialect.checked(scalar(check.value, scope), size_text(check.extent, scope), code)


def multiplied_and_added(expr: Call) -> tuple[Expr, Expr, Expr] | None:
    """`(a, b, c)` where a float is `a * b + c`, which is one operation wherever it stands (`tsc_fma` in the header); None for
    anything else. Of two products the first is `a * b`. A difference is two operations: where `c` is the greatest of such
    products, `a * b - c` is 0 at one of them and nowhere more, as a softmax needs it; rounded once, what the product was
    rounded by would be left, of any size."""
    if expr.fn != "add" or not expr.dtype.startswith("float"):
        return None
    match expr.args:
        case (Call(fn="mul", args=(a, b)), c) | (c, Call(fn="mul", args=(a, b))):
            return a, b, c
    return None


def _call(expr: Call, scope: Scope) -> str:
    if (parts := multiplied_and_added(expr)) is not None:
        texts = [scalar(part, scope) for part in parts]
        return f"tsc_fma_{expr.dtype}({', '.join([*texts[:2], _hidden_zero(parts[2]) or texts[2]])})"
    fn, dtype = expr.fn, expr.args[-1].dtype
    own = scope.dialect.comparison(expr, scope) if fn in _COMPARE and dtype == INDEX else \
        scope.dialect.choice(expr, scope) if fn == "select" else ""
    if own:
        return own
    args = [scalar(a, scope) for a in expr.args]
    if fn in _COMPARE:
        return f"({args[0]} {_COMPARE[fn]} {args[1]})"
    if fn in _LOGIC:
        return f"({args[0]} {(_ASKED if scope.dialect.asks_both(expr, scope) else _LOGIC)[fn]} {args[1]})"
    match fn:
        case "not":
            return f"(!{args[0]})"
        case "select":
            return f"({args[0]} ? {args[1]} : {args[2]})"
        case "isnan" | "isinf":
            return f"(__builtin_{fn}({args[0]}) != 0)"
        case "neg":
            return f"tsc_neg_{dtype}({args[0]})" if dtype.startswith("float") else _wrap(f"0 - {args[0]}", expr)
        case "mul" if dtype.startswith("float") and (negated := _times_minus_one(expr.args)) is not None:
            return f"tsc_neg_{dtype}({args[negated]})"
        case "div" if dtype.startswith("float"):
            return f"({args[0]} / {args[1]})"
        case "floordiv" | "mod" if dtype == INDEX and _divides_plainly(*_pair(expr), scope):
            return scope.dialect.quotient(expr, scope) or f"({args[0]} {'/' if fn == 'floordiv' else '%'} {args[1]})"
    if fn in ("add", "sub") and dtype.startswith("float"):
        args = [_hidden_zero(a) or text for a, text in zip(expr.args, args)]
    if fn in _INFIX:
        return _wrap(f"{args[0]} {_INFIX[fn]} {args[1]}", expr)
    c_type(dtype)
    return f"tsc_{fn}_{dtype}({', '.join(args)})"


def _times_minus_one(factors: tuple[Expr, ...]) -> int | None:
    """Which of two factors the other one negates, being -1: compilers take the product for a negation, too."""
    return next((1 - k for k, factor in enumerate(factors) if isinstance(factor, Const) and factor.value == -1), None)


def _hidden_zero(expr: Expr) -> str:
    """A literal zero as text that does not say it is one, "" for anything else: gcc gets the signs of sums with zeros wrong."""
    if not isinstance(expr, Const) or expr.value != 0:
        return ""
    return f"{'-' if copysign(1, expr.value) < 0 else ''}tsc_zero_{expr.dtype}()"


def _wrap(text: str, expr: Call) -> str:
    """Small integers are computed as int in C; the others wrap around (-fwrapv)."""
    narrow = expr.dtype in ("int8", "int16", "uint8", "uint16", "bool")
    return f"(({c_type(expr.dtype)})({text}))" if narrow else f"({text})"


def _pair(expr: Call) -> tuple[SymExpr, SymExpr]:
    left, right = (to_sym(a, {}) for a in expr.args)
    return left, right


def _divides_plainly(a: SymExpr, b: SymExpr, scope: Scope) -> bool:
    """Whether C's division, which rounds towards zero, is the one that rounds down."""
    return scope.facts.nonneg(a) and scope.facts.nonneg(b - 1)
