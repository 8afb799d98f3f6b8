"""The data errors of a kernel: every CheckedIndex gets a status code, and every code a message.

A message names buffers and sizes as `{t0}` and `{s0}`: a kernel serves many calls, and each fills in its own tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tsc.loop_ir.nodes import For, Func, If, Let, Stmt, Store, walk
from tsc.sym import dim
from tsc.te.expr import CheckedIndex, Expr, loads
from tsc.te.expr import walk as walk_expr


def message_of(check: CheckedIndex) -> str:
    """What a failed check says, a template over the kernel's buffers and sizes."""
    sources = dict.fromkeys(load.buffer.name for load in loads(check.value))
    holder = " and ".join(f"'{{{name}}}'" for name in sources) or check.what
    size = check.extent.as_int()
    if size is not None:
        return f"{holder} holds an index that is out of bounds; give indices from {-size} to {size - 1}"
    extent = check.extent.substitute({name: dim(f"{{{name}}}") for name in check.extent.dims()})
    return f"{holder} holds an index that is out of bounds; give indices from -({extent}) to {extent} - 1"


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
