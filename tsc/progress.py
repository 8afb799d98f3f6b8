"""What a compilation is doing, for a person who waits: one line on stderr, rewritten as the work goes on, gone at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic

from tsc.config import Options

_BACK = "\r\x1b[K"  # to the start of the line, and clear it
#: What takes less time than this, in seconds, is not worth a line.
PATIENCE = 0.5


@contextmanager
def shown(options: Options, verbose: bool | None) -> Iterator[Options]:
    """`options` that show progress on stderr: with `verbose` None only where somebody looks on (a terminal or a notebook) and
    nobody else asked to be told."""
    if options.progress is not None or not (somebody_looks() if verbose is None else verbose):
        yield options
        return
    begun, line = monotonic(), ""

    def show(what: str, done: int, total: int) -> None:
        nonlocal line
        if verbose or monotonic() - begun > PATIENCE:
            line = f"tsc: {what}, {done} of {total} ({monotonic() - begun:.0f} s)"
            sys.stderr.write(_BACK + line)
            sys.stderr.flush()

    try:
        yield replace(options, progress=show)
    finally:
        if line:
            sys.stderr.write(_BACK)
            sys.stderr.flush()


def somebody_looks() -> bool:
    """Whether stderr is a terminal or a notebook's."""
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)
