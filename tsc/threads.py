"""Threads of one's own where they are to be had: a process may be allowed no more of them (ulimit -u, a container's limit)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S")


def submitted(pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: object) -> Future[T]:
    """As `pool.submit`; where no thread can be started the work is done here and now. (The pool may do it once more.)"""
    try:
        return pool.submit(work, *arguments)
    except RuntimeError:
        done: Future[T] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:  # what the work raises is told where its result is asked for
            done.set_exception(error)
        return done


def mapped(count: int, work: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """The results of some work on each item, in order, on so many threads. Raises what the first of them raised."""
    with ThreadPoolExecutor(count) as pool:
        return [done.result() for done in [submitted(pool, work, item) for item in items]]
