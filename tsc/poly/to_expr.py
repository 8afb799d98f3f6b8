"""isl's AST expressions as te expressions over loop variables and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tsc.errors import InternalError
from tsc.poly import isl
from tsc.poly.linear import difference, tidy
from tsc.sym import ONE, ZERO, dim
from tsc.te.expr import BOOL, Call, Expr, Size, Var, as_size, call, index, select

_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "div": "floordiv", "fdiv_q": "floordiv", "pdiv_q": "floordiv",
           "pdiv_r": "mod", "zdiv_r": "mod", "min": "min", "max": "max", "eq": "eq", "le": "le", "lt": "lt",
           "ge": "ge", "gt": "gt"}
_LOGIC = {"and": "and", "and_then": "and", "or": "or", "or_else": "or"}


def to_expr(ast: isl.AstExpr, iterators: Mapping[str, Expr]) -> Expr:
    """`ast` with its iterators replaced; any other name is a size. Raises InternalError on an operation unknown here."""
    kind = ast.get_type()
    if kind == isl.AstExprType.int:
        return index(int(ast.get_val().to_python()))
    if kind == isl.AstExprType.id:
        name = str(ast.get_id().get_name())
        return iterators[name] if name in iterators else Size(dim(name))
    op = isl.op_name(ast)
    arguments = [to_expr(a, iterators) for a in isl.arguments(ast)]
    if op == "minus":
        return tidy(call("sub", index(0), arguments[0]))
    if op in ("select", "cond"):
        return _choice(*arguments)
    if op in _LOGIC or op in _BINARY:
        result = arguments[0]
        for argument in arguments[1:]:
            result = (Call(_LOGIC[op], (result, argument), BOOL) if op in _LOGIC else call(_BINARY[op], result, argument))
        return tidy(result) if op in ("add", "sub", "mul") else result
    raise InternalError(f"isl made an expression with '{op}', which has no meaning in the loop IR")


def _choice(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """A select; where it says which of its sides is greater, that `max` or `min`."""
    if isinstance(condition, Call) and condition.fn in ("ge", "gt", "le", "lt"):
        left, right = condition.args if condition.fn in ("ge", "gt") else condition.args[::-1]
        least = 1 if condition.fn in ("gt", "lt") else 0  # the condition is left - right >= least
        for fn, first, second in (("max", yes, no), ("min", no, yes)):
            offset = as_size(difference(difference(first, second), difference(left, right)))
            if offset is not None and offset.as_int() is not None and offset + least in (ZERO, ONE):
                return Call(fn, (yes, no), yes.dtype)
    return select(condition, yes, no)


def parameter_expr(function: isl.PwAff) -> Expr:
    """A function of the sizes alone."""
    return tidy(to_expr(isl.expression(function), {}))


def function_expr(function: isl.PwAff, names: Sequence[str]) -> Expr:
    """A function of instances as an expression of the Vars `names`, their coordinates, and the sizes."""
    return tidy(to_expr(isl.named_function(function, names), {n: Var(n) for n in names}))


def condition_expr(points: isl.Set, names: Sequence[str]) -> Expr:
    """Being in `points` as a condition on the Vars `names`, their coordinates, and the sizes."""
    return to_expr(isl.named_condition(points, names), {n: Var(n) for n in names})
