"""Kernels scheduled in processes of their own while this one schedules others: isl and Python keep to one core each.

Whatever goes wrong in a worker (it is killed, has no memory, or raises what is no refusal), the kernel is left to this process,
which says what is wrong as it would alone.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Condition, Thread

from tsc.errors import TscError
from tsc.frames import read_frame, start, write_frame
from tsc.graph.fusion.to_te import LoweredGroup
from tsc.ir import Graph
from tsc.kernels import Order, Workshop, code_fingerprint, known, made_bytes, order_of
from tsc.plan.kernel import Kernel, kernel_from_bytes
from tsc.trace import Recorder

#: A worker takes as long to start as a kernel or two to be scheduled.
KERNELS_A_WORKER = 3
#: Each takes 150 MB, and no model has so many kernels that more would be felt.
MOST_WORKERS = 8


def serve() -> None:
    """A worker: answer orders with the bytes of kernels until standard input ends."""
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed is no answer
    sink.write(code_fingerprint().encode())
    sink.flush()
    while (frame := read_frame(source)) is not None:
        order: Order = pickle.loads(frame)
        try:
            answer = made_bytes(order, Recorder())
        except TscError:
            answer = b""
        write_frame(sink, answer)


@contextmanager
def scheduling_ahead(lowered: Iterable[LoweredGroup], graph: Graph, shop: Workshop,
                     compile_ahead: Callable[[str], None]) -> Iterator[Workshop]:
    """`shop`, whose `elsewhere` has what workers made of the Programs, as far as there are enough that nothing is known of.
    Half of the jobs schedule, the others compile: `compile_ahead` gets the sources, in threads."""
    count, recorder = min(shop.options.job_count() // 2 - 1, MOST_WORKERS), shop.recorder
    orders: dict[str, Order] = {}
    if count > 0 and recorder.dump_to is recorder.override_from is None:
        orders = {order.key(): order for order in (order_of(one, graph, shop) for one in lowered)}
        orders = {key: order for key, order in orders.items() if known(key, shop) is None}
        count = min(count, len(orders) // KERNELS_A_WORKER)
    if count < 1 or not orders:
        yield shop
        return
    pool = _Pool(orders, compile_ahead)
    threads = [Thread(target=pool.work, daemon=True) for _ in range(count)]
    try:
        for thread in threads:
            with suppress(RuntimeError):  # no thread to be had
                thread.start()
        yield replace(shop, elsewhere=pool.take)
    finally:
        pool.close()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


class _Pool:
    """Orders that wait, are being worked on, and what became of them. All of it is guarded by one condition."""

    def __init__(self, orders: Mapping[str, Order], compile_ahead: Callable[[str], None]) -> None:
        self._compile_ahead = compile_ahead
        self._changed = Condition()
        self._waiting = dict(orders)
        self._busy: set[str] = set()
        self._made: dict[str, bytes] = {}
        self._children: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def take(self, key: str) -> bytes | None:
        """What was made of an order, None where this process has to make it. While a worker is at it, another order is worked
        on here."""
        while True:
            with self._changed:
                self._waiting.pop(key, None)
                if key not in self._busy:
                    return self._made.get(key)
                if not self._waiting:
                    self._changed.wait()
                    continue
                other, order = next(iter(self._waiting.items()))
                del self._waiting[other]
            with suppress(TscError):  # said when its turn comes
                self._keep(other, made_bytes(order, Recorder()))

    def close(self) -> None:
        """No more orders are wanted."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            for child in self._children:
                child.kill()

    def work(self) -> None:
        """One worker, in a thread: orders to a process until there are no more, or it fails."""
        try:
            child = start(__name__)
        except OSError as error:
            _log(f"no worker: {error}")
            return
        with self._changed:
            self._children.add(child)
            if self._closed:
                child.kill()
        try:
            self._serve(child)
        except Exception as error:  # whatever it is, the kernel is made here
            _log(f"a worker is given up: {type(error).__name__}: {error}")
        finally:
            with self._changed:
                self._children.discard(child)
            child.kill()
            child.communicate()

    def _serve(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdin is not None and child.stdout is not None
        hello = code_fingerprint().encode()
        if child.stdout.read(len(hello)) != hello:
            raise ValueError("it did not start, or has another compiler's source")
        while True:
            with self._changed:
                if not self._waiting:
                    return
                key, order = next(iter(self._waiting.items()))
                del self._waiting[key]
                self._busy.add(key)
            answer = None
            try:
                write_frame(child.stdin, pickle.dumps(order))
                answer = read_frame(child.stdout)
            finally:
                with self._changed:
                    self._busy.discard(key)
                    self._changed.notify_all()
                    if answer:
                        self._keep(key, answer)
            if answer is None:
                raise ValueError(f"it ended with status {child.wait()}")

    def _keep(self, key: str, data: bytes) -> None:
        kernel = kernel_from_bytes(data)
        self._made[key] = data
        if isinstance(kernel, Kernel):
            for source in kernel.sources.values():
                self._compile_ahead(source)


def _log(text: str) -> None:
    logging.getLogger("tsc").info("scheduling: %s", text)
