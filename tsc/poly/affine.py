"""Index expressions of `te` as isl text. What isl cannot express (products of variables, `m // L`) gives None."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tsc.errors import InternalError
from tsc.loop_ir.nodes import For
from tsc.sym import SymExpr
from tsc.sym.expr import Apply, Atom
from tsc.te.compute import Program
from tsc.te.expr import BOOL, INDEX, Call, Cast, Const, Expr, Size, Var, as_size

_COMPARE = {"eq": "=", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def size_text(size: SymExpr) -> str | None:
    """A size as an affine expression of the parameters, or None."""
    parts = []
    for monomial, coefficient in size.terms:
        if len(monomial) > 1:
            return None
        atom = _atom_text(monomial[0]) if monomial else "1"
        if atom is None:
            return None
        parts.append(str(coefficient) if not monomial else atom if coefficient == 1 else f"{coefficient} * {atom}")
    return " + ".join(parts) if parts else "0"


def index_text(expr: Expr, names: Mapping[str, str]) -> str | None:
    """An index as a (quasi-)affine expression of the axes in `names` (te name -> isl name) and the parameters, or None."""
    match expr:
        case Var(name=name):
            return names.get(name)
        case Const(value=value) if expr.dtype == INDEX:
            return str(int(value))
        case Size(value=value):
            return size_text(value)
        case Cast(value=value, dtype="int64") if value.dtype == INDEX:
            return index_text(value, names)
        case Call(fn=fn, args=args) if expr.dtype == INDEX:
            return _call_text(fn, args, names)
    return None


def box_text(shape: Sequence[SymExpr], names: Sequence[str]) -> str:
    """The constraints of a box from 0 to `shape`. Raises InternalError for an extent that is not affine."""
    parts = []
    for name, extent in zip(names, shape):
        text = size_text(extent)
        if text is None:
            raise InternalError(f"extent {extent} is not affine in the kernel's sizes; it needs a size of its own")
        parts.append(f"0 <= {name} < {text}")
    return " and ".join(parts) or "1 = 1"


def fact_texts(program: Program) -> tuple[list[str], list[str]]:
    """The hidden names in a Program's facts, and those facts that are affine."""
    sizes = {size.name for size in program.sizes}
    texts = [(size_text(f.left), "=" if f.relation == "==" else f.relation, size_text(f.right)) for f in program.facts]
    return (list(dict.fromkeys(n for fact in program.facts for n in sorted(fact.names() - sizes))),
            [f"{left} {sign} {right}" for left, sign, right in texts if left is not None and right is not None])


def condition_text(expr: Expr, names: Mapping[str, str], negate: bool = False) -> str | None:
    """A condition over affine indices as a Presburger formula, or None."""
    return condition_of(expr, lambda e: index_text(e, names), lambda e: None, negate)


def condition_of(expr: Expr, index: Callable[[Expr], str | None], other: Callable[[Expr], str | None],
                 negate: bool = False) -> str | None:
    """A condition as a Presburger formula, or None: `index` gives the text of the indices that it compares, `other` that of a
    condition which compares none."""
    match expr:
        case Const(value=value) if expr.dtype == BOOL:
            return "1 = 1" if bool(value) != negate else "1 = 0"
        case Call(fn="not", args=(inner,)):
            return condition_of(inner, index, other, not negate)
        case Call(fn="and" | "or" as fn, args=args):
            parts = [condition_of(a, index, other, negate) for a in args]
            known = [p for p in parts if p is not None]
            if len(known) < len(parts):
                return None
            return "(" + (" and " if (fn == "and") != negate else " or ").join(known) + ")"
        case Call(fn="xor" | "ne" | "eq" as fn, args=(left, right)) if left.dtype == BOOL:
            sides = [condition_of(a, index, other, flag) for a in (left, right) for flag in (False, True)]
            known = [s for s in sides if s is not None]
            if len(known) < len(sides):
                return None
            one, not_one, two, not_two = known
            if (fn == "eq") == negate:
                two, not_two = not_two, two
            return f"(({one} and {two}) or ({not_one} and {not_two}))"
        case Call(fn=fn, args=(left, right)) if fn in _COMPARE and left.dtype == INDEX:
            a, b = index(left), index(right)
            if a is None or b is None:
                return None
            return f"({a}) {_COMPARE[_NEGATED[fn] if negate else fn]} ({b})"
    found = other(expr)
    return found if found is None or not negate else f"not ({found})"


def bound_texts(loop: For, text: Callable[[Expr], str]) -> list[str]:
    """What the bounds and the step of a loop say of its variable, given the text of indices."""
    lows = [f"{text(e)} <= {loop.var}" for e in _operands(loop.lo, "max")]
    steps = [f"({loop.var} - ({text(loop.lo)})) mod {loop.step} = 0"] if loop.step != 1 else []
    return [*lows, *upper_texts(loop, loop.var, text), *steps]


def upper_texts(loop: For, variable: str, text: Callable[[Expr], str]) -> list[str]:
    """What the end of a loop says of its variable: one conjunct an operand of min, so that no case distinction arises."""
    return [f"{variable} < {text(e)}" for e in _operands(loop.hi, "min")]


def _operands(expr: Expr, fn: str) -> list[Expr]:
    if isinstance(expr, Call) and expr.fn == fn:
        return [operand for a in expr.args for operand in _operands(a, fn)]
    return [expr]


def _atom_text(atom: Atom) -> str | None:
    if not isinstance(atom, Apply):
        return atom.name
    texts = [size_text(a) for a in atom.args]
    known = [t for t in texts if t is not None]
    if len(known) < len(texts):
        return None
    if atom.fn in ("min", "max"):
        return f"{atom.fn}({', '.join(known)})"
    divisor = atom.args[1].as_int()
    if divisor is None or divisor <= 0:
        return None
    return f"floor(({known[0]})/{divisor})" if atom.fn == "//" else f"(({known[0]}) mod {divisor})"


def _call_text(fn: str, args: tuple[Expr, ...], names: Mapping[str, str]) -> str | None:
    texts = [index_text(a, names) for a in args]
    known = [t for t in texts if t is not None]
    if len(known) < len(texts):
        return None
    match fn:
        case "add" | "sub":
            return f"({known[0]} {'+' if fn == 'add' else '-'} ({known[1]}))"
        case "neg":
            return f"(-({known[0]}))"
        case "min" | "max":
            return f"{fn}({known[0]}, {known[1]})"
        case "abs":
            return f"max({known[0]}, -({known[0]}))"
    factors = [size.as_int() if (size := as_size(a)) is not None else None for a in args]
    if fn == "mul":
        for constant, other in ((factors[0], known[1]), (factors[1], known[0])):
            if constant is not None:
                return f"({constant} * ({other}))"
    if fn in ("floordiv", "mod") and factors[1] is not None and factors[1] > 0:
        return f"floor(({known[0]})/{factors[1]})" if fn == "floordiv" else f"(({known[0]}) mod {factors[1]})"
    return None
