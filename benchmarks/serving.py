"""`tsc serve` under load: throughput of short requests alone and joined, latency at 70 % of what it can do, memory.

    python3 dev.py bench serving [--model model.onnx] [--seconds 600] [--clients 64] [--workers 2] [--threads 1]

The model (MiniLM by default) is compiled, put into a folder and served in processes of its own; clients are connections of this
process, which shares the machine with the server. First short requests (1 to 8 tokens) as fast as they are answered, each
client asking again when it has its answer, each run alone and several together; then requests of 1 to 256 tokens, as fast
as they are answered, and at 70 % of that rate for `--seconds`, at random times. Latencies count from when a request was due.
Each answer has to be what the model gives alone, to the last bit. Memory is what the server's processes have, shared pages
counted once (PSS): after a minute, and at the end. One process is killed by -9 in the middle, and its requests have to be
refused, not lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tsc
from benchmarks.minilm import cpu_name, model_path

SHORT, ALL = (1, 8), (1, 256)
ALONE = "requests = 1"
#: Requests of which a load is drawn, seconds of a saturated one, the share of its rate that the long one has.
DRAWN, SATURATED, SHARE = 64, 10.0, 0.7


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it goes over the wire, and what is to come back."""

    wire: bytes
    expected: np.ndarray


@dataclass(slots=True)
class Load:
    """What came of a load: seconds of each answered request, and how often each status came; `wrong` answers were others."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    took: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.took

    def share(self, percent: float) -> float:
        """Milliseconds within which so many of the requests were answered."""
        return 1e3 * float(np.percentile(self.seconds, percent))


def requests(model: tsc.Executable, lengths: tuple[int, int]) -> list[Asked]:
    """Random sentences of random lengths, all alike often, with what the model gives for each alone."""
    rng, found = np.random.default_rng(0), []
    for length in rng.integers(lengths[0], lengths[1] + 1, DRAWN):
        ids = rng.integers(100, 20_000, (1, int(length)))
        feeds = {spec.name: {"input_ids": ids, "attention_mask": np.ones_like(ids)}.get(spec.name, np.zeros_like(ids))
                 for spec in model.inputs}
        output = model.outputs[-1].name
        expected, = model.run([output], feeds)
        found.append(Asked(wire(feeds, output), expected))
    return found


def wire(feeds: dict[str, np.ndarray], output: str) -> bytes:
    """An HTTP request by the binary tensor data extension."""
    raw = b"".join(array.tobytes() for array in feeds.values())
    head = json.dumps({
        "inputs": [{"name": name, "datatype": "INT64", "shape": list(array.shape),
                    "parameters": {"binary_data_size": array.nbytes}}
                   for name, array in feeds.items()],
        "outputs": [{"name": output, "parameters": {"binary_data": True}}]}).encode()
    lines = ("POST /v2/models/model/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(head) + len(raw)}",
             f"Inference-Header-Content-Length: {len(head)}", "", "")
    return "\r\n".join(lines).encode() + head + raw


class Client:
    """One connection, which is opened again where it was closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Asked, load: Load, due: float) -> None:
        """Send a request and look at its answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        reader, writer = self._streams
        writer.write(request.wire)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        body = await reader.readexactly(int(re.findall(r"\ncontent-length: (\d+)", head)[0]))
        status = int(head.split(" ", 2)[1])
        load.statuses[status] += 1
        if status != 200:
            return
        load.seconds.append(time.perf_counter() - due)
        given = np.frombuffer(body[int(re.findall(r"\ninference-header-content-length: (\d+)", head)[0]):], np.float32)
        load.wrong += not np.array_equal(given, request.expected.ravel())

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def load(port: int, drawn: Sequence[Asked], clients: int, seconds: float, rate: float | None = None,
               meanwhile: Callable[[float], None] = lambda now: None) -> Load:
    """Ask for so long: as fast as there are answers or, by a `rate`, that often a second on average."""
    found, rng, begin = Load(), random.Random(0), time.perf_counter()

    async def asks(client: Client) -> None:
        due = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            if rate is None:
                due = time.perf_counter()
            else:
                due += rng.expovariate(rate / clients)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await client.ask(rng.choice(drawn), found, due)
        await client.close()

    async def watches() -> None:
        while (now := time.perf_counter() - begin) < seconds:
            meanwhile(now)
            await asyncio.sleep(0.25)

    await asyncio.gather(watches(), *(asks(Client(port)) for _ in range(clients)))
    found.took = time.perf_counter() - begin
    return found


@asynccontextmanager
async def served(package: Path, settings: str, workers: int, threads: int) -> AsyncIterator[tuple[int, int]]:
    """A server's port and its process, ended by SIGTERM."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.tscpack").symlink_to(package)
        if settings:
            (Path(folder) / "model.toml").write_text(settings, encoding="utf-8")
        command = [sys.executable, "-m", "tsc", "serve", folder, "--http-port", "0", "--no-grpc", "--workers", str(workers),
                   "--threads", str(threads)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            yield int(line.rpartition(":")[2]), process.pid
        finally:
            process.terminate()
            if code := process.wait(30):
                raise SystemExit(f"the server ended with {code}")


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()]


def memory(processes: Sequence[int]) -> int:
    """Bytes of some processes, pages that they share counted once."""
    def own(pid: int) -> int:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        return 1024 * int(re.findall(r"^Pss: +(\d+) kB", told, re.MULTILINE)[0])
    return sum(map(own, processes))


async def measure(package: Path, asked: argparse.Namespace) -> None:
    model = tsc.load(package, threads=1)
    short, everything, weights = requests(model, SHORT), requests(model, ALL), model.stats["constant_bytes"]
    del model  # which shares its weights with the server's processes
    rates = []
    for settings in (ALONE, ""):
        async with served(package, settings, asked.workers, asked.threads) as (port, _):
            await load(port, short, asked.clients, 1.0)
            found = await load(port, short, asked.clients, SATURATED)
        rates.append(found.rate)
        print(f"1 to 8 tokens, {'each alone' if settings else 'joined'}: {found.rate:.0f} requests a second, p50 "
              f"{found.share(50):.1f} ms, p99 {found.share(99):.1f} ms, {found.wrong} wrong", flush=True)
    print(f"joined requests are {rates[1] / rates[0]:.2f} times as many", flush=True)
    async with served(package, "", asked.workers, asked.threads) as (port, process):
        await load(port, everything, asked.clients, 1.0)
        most = (await load(port, everything, asked.clients, SATURATED)).rate
        held: dict[int, int] = {}
        killed: list[int] = []

        def watch(now: float) -> None:
            if int(now) % 10 == 0:
                held[int(now)] = memory([process, *children(process)])
            if not killed and now > asked.seconds * 0.75:
                killed.append(children(process)[0])
                os.kill(killed[0], signal.SIGKILL)

        found = await load(port, everything, asked.clients, asked.seconds, SHARE * most, watch)
        print(f"1 to 256 tokens: {most:.0f} requests a second; at {found.rate:.0f} a second for {found.took:.0f} s p50 "
              f"{found.share(50):.1f} ms, p99 {found.share(99):.1f} ms ({found.share(99) / found.share(50):.1f} times), "
              f"{found.wrong} wrong, statuses {dict(sorted(found.statuses.items()))}, one process killed on the way")
        before = {second: size for second, size in held.items() if second >= min(60, asked.seconds / 4)}
        print("memory in MB: " + ", ".join(f"{second} s {size / 1e6:.0f}" for second, size in sorted(before.items())[::6])
              + f", at the end {memory([process, *children(process)]) / 1e6:.0f}; weights {weights / 1e6:.0f}, all workers "
              f"{memory(children(process)) / weights:.2f} times that")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="An ONNX file with the inputs of MiniLM.")
    parser.add_argument("--seconds", type=float, default=600)
    for name, default in (("clients", 64), ("workers", 2), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    print(f"{cpu_name()}, {asked.workers} workers of {asked.threads} threads, {asked.clients} clients")
    with tempfile.TemporaryDirectory() as folder:
        tsc.compile(asked.model or model_path()).save(package := Path(folder) / "model.tscpack")
        asyncio.run(measure(package, asked))


if __name__ == "__main__":
    main()
