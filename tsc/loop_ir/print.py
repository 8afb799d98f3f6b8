"""Readable text of a Func: deterministic, one statement a line, for dumps and goldens."""

from __future__ import annotations

from collections.abc import Iterator

from tsc.loop_ir.nodes import Allocate, Barrier, Block, Commit, For, Func, If, Intrin, Let, Stmt, Store, Wait
from tsc.te.expr import format_expr


def format_func(func: Func) -> str:
    """The whole Func."""
    buffers = "".join(f"  {b}{'  out' if b.name in func.outputs else ''}\n" for b in func.buffers)
    facts = f"  sizes {', '.join(map(str, func.sizes))}\n  blocks {func.blocks}\n  scratch {func.scratch}\n"
    messages = "".join(f"  message {i + 1}: {m}\n" for i, m in enumerate(func.messages))
    return f"func {func.name}\n{buffers}{facts}{messages}{format_stmt(func.body, 1)}"


def format_stmt(stmt: Stmt, depth: int = 0) -> str:
    """A statement, indented by `depth` levels."""
    return "".join(f"{'  ' * level}{text}\n" for level, text in _lines(stmt, depth))


def _lines(stmt: Stmt, depth: int) -> Iterator[tuple[int, str]]:
    match stmt:
        case Store(buffer=buffer, index=index, value=value, instance=instance, asynchronous=asynchronous):
            sign = "<~" if asynchronous else "="
            note = f"  # {instance.statement}[{', '.join(map(format_expr, instance.index))}]" if instance else ""
            yield depth, f"{buffer.name}[{', '.join(map(format_expr, index))}] {sign} {format_expr(value)}{note}"
        case For(var=var, lo=lo, hi=hi, body=body, step=step, kind=kind, mark=mark):
            by = f" by {step}" if step != 1 else ""
            words = ("" if kind == "serial" else f" {kind}") + (f" mark={mark}" if mark else "")
            yield depth, f"for {var} in {format_expr(lo)} .. {format_expr(hi)}{by}{words}"
            yield from _lines(body, depth + 1)
        case If(condition=condition, then=then, otherwise=otherwise):
            yield depth, f"if {format_expr(condition)}"
            yield from _lines(then, depth + 1)
            if otherwise is not None:
                yield depth, "else"
                yield from _lines(otherwise, depth + 1)
        case Let(var=var, value=value, body=body):
            yield depth, f"let {var} = {format_expr(value)}"
            yield from _lines(body, depth)
        case Block(body=body):
            for part in body:
                yield from _lines(part, depth)
        case Allocate(buffer=buffer, scope=scope, body=body, offset=offset):
            where = f" at {offset}" if scope == "scratch" else ""
            yield depth, f"allocate {buffer} {scope}{where}"
            yield from _lines(body, depth)
        case Intrin(name=name, meaning=meaning, team=team):
            yield depth, f"intrin {name}" + ("" if team is None else f" {team}")
            yield from _lines(meaning, depth + 1)
        case Barrier(team=team):
            yield depth, f"barrier {team}"
        case Commit():
            yield depth, "commit"
        case Wait(pending=pending):
            yield depth, f"wait {pending}"
