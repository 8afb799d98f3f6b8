"""Scalar expressions: the one expression language of the tensor DSL and of the loop IR.

An expression is a frozen tree. `Var` is a loop or tensor axis, `Size` a symbolic size, `Load` an element of a Buffer.
Every other operation is a `Call` of a named intrinsic whose meaning (in NumPy) stands in `te/intrinsics.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import copysign
from operator import attrgetter, is_

from tsc.errors import InternalError
from tsc.sym import SymExpr
from tsc.te.layout import Beside, Combinators, panel_of, stored, text

INDEX = "int64"
#: No array of a machine is longer, nor is any of its dims where it has an element: what lies beyond is one place.
FARTHEST = 1 << 48
BOOL = "bool"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense tensor: a name, an ONNX/NumPy dtype name, a symbolic shape, and the layout in which memory has it (row-major
    where that is empty)."""

    name: str
    dtype: str
    shape: tuple[SymExpr, ...]
    layout: Combinators = ()

    @property
    def panel(self) -> tuple[int, int] | None:
        """The axis whose elements lie together in panels, and how many do; None where memory is row-major."""
        found = panel_of(len(self.shape), self.layout) if self.layout else None
        return found and found[:2]

    @property
    def beside(self) -> Beside | None:
        """The axis of which panels have neighbours side by side, and how many, if they do."""
        found = panel_of(len(self.shape), self.layout) if self.layout else None
        return found and found[2]

    @property
    def stored(self) -> tuple[SymExpr, ...]:
        """The extents in memory, slowest first."""
        return stored(self.shape, self.layout)

    def __str__(self) -> str:
        layout = f" {text(len(self.shape), self.layout)}" if self.layout else ""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]{layout}"


@dataclass(frozen=True, slots=True)
class Var:
    """An axis or loop variable of dtype int64."""

    name: str
    dtype: str = INDEX


@dataclass(frozen=True, slots=True, eq=False)
class Const:
    """A literal. Floats may be inf or nan. Equal are literals that are the same: a nan is, 0.0 and -0.0 are not."""

    value: int | float | bool
    dtype: str

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const) or self.dtype != other.dtype:
            return False
        a, b = self.value, other.value
        return copysign(1, a) == copysign(1, b) if a == b == 0 else a == b or (a != a and b != b)

    def __hash__(self) -> int:
        return hash((self.value if self.value == self.value else "nan", self.dtype))


@dataclass(frozen=True, slots=True)
class Size:
    """The value of a symbolic size, of dtype int64."""

    value: SymExpr
    dtype: str = INDEX


@dataclass(frozen=True, slots=True)
class Load:
    """The element of `buffer` at `index` (one expression a dimension, in the buffer's plain shape whatever its layout)."""

    buffer: Buffer
    index: tuple[Expr, ...]

    @property
    def dtype(self) -> str:
        return self.buffer.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """A named intrinsic applied to arguments; `dtype` is the result's. See `te/intrinsics.py` for the list."""

    fn: str
    args: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Cast:
    """A conversion with C semantics (float to int truncates; anything to bool is `!= 0`)."""

    value: Expr
    dtype: str


@dataclass(frozen=True, slots=True)
class CheckedIndex:
    """A data-dependent index: negative values count from the end, and one outside `[-extent, extent)` is a data error
    reported through the status word (the access itself is clamped into bounds). `what` names the tensor, or is the whole
    message (`te/passes/messages.py`)."""

    value: Expr
    extent: SymExpr
    what: str
    dtype: str = INDEX


Expr = Var | Const | Size | Load | Call | Cast | CheckedIndex


# -- walking ---------------------------------------------------------------------------------------------------

#: How a node's children are read: by its type, since most nodes have none and all are asked.
_CHILDREN: Mapping[type, Callable[..., tuple[Expr, ...]]] = {
    Load: attrgetter("index"), Call: attrgetter("args"), Cast: lambda node: (node.value,),
    CheckedIndex: lambda node: (node.value,)}


def children(expr: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions."""
    read = _CHILDREN.get(type(expr))
    return read(expr) if read else ()


def map_children(fn: Callable[[Expr], Expr], expr: Expr) -> Expr:
    """The same node over `fn` of each child; the node itself when nothing changed."""
    old = children(expr)
    if not old:
        return expr
    new = tuple(map(fn, old))
    if all(map(is_, old, new)):
        return expr
    match expr:  # not by `replace`, which takes several times as long: this is called for every node of every expression
        case Load(buffer=buffer):
            return Load(buffer, new)
        case Call(fn=name, dtype=dtype):
            return Call(name, new, dtype)
        case Cast(dtype=dtype):
            return Cast(new[0], dtype)
        case CheckedIndex(extent=extent, what=what, dtype=dtype):
            return CheckedIndex(new[0], extent, what, dtype)
    raise InternalError(f"{type(expr).__name__} has no children")


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node, parents first."""
    left = [expr]
    while left:
        node = left.pop()
        yield node
        left.extend(reversed(children(node)))


def variables(expr: Expr) -> frozenset[str]:
    """The names of the Vars that occur."""
    return frozenset(n.name for n in walk(expr) if isinstance(n, Var))


def map_loads(fn: Callable[[Load], Expr], expr: Expr) -> Expr:
    """`expr` with every Load replaced by what `fn` makes of it, inner ones first."""
    inner = map_children(lambda c: map_loads(fn, c), expr)
    return fn(inner) if isinstance(inner, Load) else inner


def substitute(expr: Expr, mapping: Mapping[str, Expr]) -> Expr:
    """Replace Vars by name."""
    def replaced(part: Expr) -> Expr:
        return mapping.get(part.name, part) if isinstance(part, Var) else map_children(replaced, part)

    return replaced(expr)


def item_bytes(dtype: str) -> int:
    """Bytes of one stored element."""
    if dtype == "bool":
        return 1
    return int("".join(ch for ch in dtype if ch.isdigit())) // 8


def operands(expr: Expr, fn: str) -> Iterator[Expr]:
    """The operands of a run of one intrinsic, in order: `a`, `b` and `c` of `(a and b) and c`."""
    if isinstance(expr, Call) and expr.fn == fn:
        for operand in expr.args:
            yield from operands(operand, fn)
    else:
        yield expr


def loads(expr: Expr) -> Iterator[Load]:
    """Every Load, outer ones first (an index may load too)."""
    for node in walk(expr):
        if isinstance(node, Load):
            yield node


# -- building --------------------------------------------------------------------------------------------------

def index(value: int | SymExpr) -> Expr:
    """An int64 literal or size. A number beyond int64 wraps around, as what is computed with it does."""
    known = value.as_int() if isinstance(value, SymExpr) else int(value)
    return Const(wrapped(known), INDEX) if known is not None else Size(SymExpr.of(value))


def wrapped(number: int) -> int:
    """The int64 that is equal modulo 2^64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def is_far(value: SymExpr) -> bool:
    """Whether a number in it is beyond all axes and sizes."""
    return any(abs(coefficient) > FARTHEST for _, coefficient in value.terms)


def may_wrap(expr: Expr) -> bool:
    """Whether int64 arithmetic with an expression may wrap around, so that no law of whole numbers but those of a ring holds of
    it: data may have any value, and a literal be beyond all axes and sizes; an index that is checked is below its extent."""
    match expr:
        case Load():
            return True
        case Const(value=value, dtype=dtype):
            return dtype == INDEX and abs(value) > FARTHEST
        case Size(value=value):
            return is_far(value)
        case CheckedIndex():
            return False
        case Cast(value=value) if value.dtype == BOOL:
            return False
        case Call(fn="select", args=(_, *chosen)):
            return any(map(may_wrap, chosen))
    return any(map(may_wrap, children(expr)))


def call(fn: str, *args: Expr) -> Expr:
    """`fn` over arguments; the result's dtype is the last argument's (comparisons: bool). Index arithmetic folds."""
    dtype = BOOL if fn in COMPARISONS else args[-1].dtype
    if dtype == INDEX and fn in _FOLDABLE and len(args) == 2:
        return _fold_index(fn, args[0], args[1])
    return Call(fn, args, dtype)


def bits(value: Expr, dtype: str) -> Expr:
    """What the bits of a number are in another type of as many."""
    wide = f"uint{8 * item_bytes(value.dtype)}"
    if value.dtype.startswith("float"):
        value = Call(f"as_{wide}", (value,), wide)
    if dtype.startswith("float"):
        return Call(f"as_{dtype}", (value if value.dtype == wide else Cast(value, wide),), dtype)
    return value if value.dtype == dtype else Cast(value, dtype)


def from_bfloat(bits: Expr) -> Expr:
    """The float32 of a bfloat16's bits, which are uint16."""
    return Call("from_bfloat", (bits,), "float32")


def to_bfloat(value: Expr) -> Expr:
    """The bits of a float32 that is rounded to bfloat16."""
    return Call("to_bfloat", (value,), "uint16")


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """`yes` where `condition` holds, else `no`; only the chosen side is evaluated."""
    if isinstance(condition, Const):
        return yes if condition.value else no
    return Call("select", (condition, yes, no), yes.dtype)


def checking(value: Expr, places: Iterable[Expr]) -> Expr:
    """`value`, in which every CheckedIndex of `places` is evaluated even where the value does not depend on it (what is read is
    the same everywhere): an index that is out of bounds stays a data error."""
    checks = dict.fromkeys(c for place in places for c in walk(place) if isinstance(c, CheckedIndex))
    kept = frozenset(walk(value)) if checks else frozenset()
    for check in checks:
        if check not in kept:  # which is never negative
            zero = Const(False if value.dtype == BOOL else 0.0 if "float" in value.dtype else 0, value.dtype)
            value = select(call("eq", check, index(-1)), zero, value)
    return value


def add(a: Expr, b: Expr) -> Expr:
    """`a + b`."""
    return call("add", a, b)


def mul(a: Expr, b: Expr) -> Expr:
    """`a * b`."""
    return call("mul", a, b)


COMMUTATIVE = frozenset({"add", "mul", "max", "min", "and", "or", "eq", "ne"})
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf"})
_FOLDABLE = frozenset({"add", "sub", "mul", "floordiv", "mod", "min", "max"})


def as_size(expr: Expr) -> SymExpr | None:
    """The SymExpr of an index expression without Vars or Loads that folding left whole, else None."""
    match expr:
        case Const(value=value) if expr.dtype == INDEX:
            return SymExpr.of(int(value))
        case Size(value=value):
            return value
    return None


def _fold_index(fn: str, a: Expr, b: Expr) -> Expr:
    from_sizes = _fold_sizes(fn, a, b)
    if from_sizes is not None:
        return from_sizes
    x, y = _known(a), _known(b)
    match fn:
        case "add" if x == 0:
            return b
        case "add" | "sub" if y == 0:
            return a
        case "mul" if x == 1:
            return b
        case "mul" | "floordiv" if y == 1:
            return a
        case "mul" if x == 0 or y == 0:
            return index(0)
        case "mod" if y == 1:
            return index(0)
    return Call(fn, (a, b), INDEX)


def _known(expr: Expr) -> int | None:
    """The value of an index expression that is a number."""
    match expr:
        case Const(value=value, dtype=dtype) if dtype == INDEX:
            return int(value)
        case Size(value=value):
            return value.as_int()
    return None


def _fold_sizes(fn: str, a: Expr, b: Expr) -> Expr | None:
    x, y = as_size(a), as_size(b)
    if x is None or y is None:
        return None
    numbers = x.as_int(), y.as_int()
    if fn == "mul" and None not in numbers:  # which may be larger than those of sizes are
        return index((numbers[0] or 0) * (numbers[1] or 0))
    match fn:
        case "add":
            found = x + y
        case "sub":
            found = x - y
        case "mul":
            found = x * y
        case "floordiv":
            found = x // y
        case "mod":
            found = x % y
        case _:
            return None
    return index(found) if found.as_int() is not None or not is_far(found) else None


def format_expr(expr: Expr) -> str:
    """Readable text, one line, deterministic."""
    match expr:
        case Var(name=name):
            return name
        case Const(value=value, dtype=dtype):
            return str(value) if dtype in (INDEX, BOOL) else f"{value!r}:{dtype}"
        case Size(value=value):
            return f"<{value}>"
        case Load(buffer=buffer, index=idx):
            return f"{buffer.name}[{', '.join(map(format_expr, idx))}]"
        case Call(fn=fn, args=args):
            return f"{fn}({', '.join(map(format_expr, args))})"
        case Cast(value=value, dtype=dtype):
            return f"{dtype}({format_expr(value)})"
        case CheckedIndex(value=value, extent=extent):
            return f"checked({format_expr(value)}, {extent})"
    raise InternalError(f"cannot print {expr!r}")
