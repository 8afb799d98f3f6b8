"""Where the storages of a region lie, and which of its steps wait for which."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace

from tsc.plan.memory import Lifetime, plan_memory
from tsc.runtime.lifetimes import lifetimes
from tsc.runtime.plan import Copy, If, Launch, Loop, Region, Step, Storage, is_barrier, storages_of
from tsc.runtime.waits import Waits
from tsc.sym import ShapeEnv, SymExpr

#: Which storages a Launch writes; it reads the others.
Writes = Callable[[Launch], Collection[int]]


def place(storages: Sequence[Storage], region: Region, env: ShapeEnv) -> tuple[tuple[Storage, ...], dict[str, SymExpr]]:
    """The storages with those of arenas where no two that are in use at once overlap, at any size; and the arenas' bytes."""
    spans = lifetimes(region)
    arenas: dict[str, SymExpr] = {}
    placed = list(storages)
    for space in dict.fromkeys(storage.space for storage in storages if storage.kind == "arena"):
        own = [i for i, storage in enumerate(storages) if storage.kind == "arena" and storage.space == space]
        memory = plan_memory([Lifetime(f"{i:05}", storages[i].bytes, *spans.get(i, (0, 0))) for i in own], env)
        arenas[space] = memory.arena_bytes
        for i in own:
            placed[i] = replace(storages[i], offset=memory.offsets[f"{i:05}"])
    return tuple(placed), arenas


def order(region: Region, storages: Sequence[Storage], writes: Writes) -> Region:
    """The region with every Launch and Copy waiting for those before it, from the last barrier on, whose memory it uses.
    Storages that begin at one offset of an arena are the same memory: `place` lets others lie apart, but empty ones."""
    made: list[Step] = []
    waits = Waits()
    for position, step in enumerate(region):
        if is_barrier(step):
            waits = Waits()
        match step:
            case Launch():
                written = set(writes(step))
                reads, changes = set(storages_of(step)) - written, written
            case Copy(source=source, target=target):
                reads, changes = {source}, {target}
            case If(then=then, otherwise=otherwise):
                made.append(replace(step, then=order(then, storages, writes), otherwise=order(otherwise, storages, writes)))
                continue
            case Loop(body=body):
                made.append(replace(step, body=order(body, storages, writes)))
                continue
            case _:
                made.append(step)
                continue
        after = waits.note(position, *({*used, *(_memory(storages[s]) for s in used)} for used in (reads, changes)))
        made.append(replace(step, after=tuple(sorted(after))))
    return tuple(made)


def _memory(storage: Storage) -> Hashable:
    return (storage.space, storage.offset) if storage.kind == "arena" else (storage.kind, storage.index)
