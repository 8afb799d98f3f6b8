"""The data errors of a kernel: every CheckedIndex gets a status code, and every code a message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tsc.loop_ir.nodes import For, Func, If, Let, Stmt, Store, walk
from tsc.te.expr import CheckedIndex, Expr
from tsc.te.expr import walk as walk_expr


def message_of(check: CheckedIndex) -> str:
    """What a failed check says."""
    size = check.extent.as_int()
    bounds = "the extent of the axis it indexes" if size is None else f"[-{size}, {size})"
    return f"an index into {check.what} is out of bounds; give indices within {bounds}"


def collect_messages(func: Func) -> Func:
    """`func` with `messages` listing its data errors in order of appearance; status code i+1 means `messages[i]`."""
    found = [message_of(c) for stmt in walk(func.body) for e in expressions(stmt) for c in walk_expr(e)
             if isinstance(c, CheckedIndex)]
    return replace(func, messages=tuple(dict.fromkeys((*func.messages, *found))))


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """The expressions directly in `stmt`."""
    match stmt:
        case Store(index=index, value=value):
            yield from (*index, value)
        case For(lo=lo, hi=hi):
            yield from (lo, hi)
        case If(condition=value) | Let(value=value):
            yield value
