"""Layers of fp32 at large sizes: what their launches take on the device, beside torch's kernels and a copy of as many bytes."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.session import Session, Skip
from benchmarks.gpu.throughput import torch_graph
from tsc.config import Precision
from tsc.runtime.drivers.protocol import Graph, GraphExec, Launch, LaunchTable, Memory, Stream
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package

Shapes = dict[str, tuple[int, ...]]
_WIDE = 1024
#: The precisions in which layers with products are timed besides.
REDUCED: tuple[Precision, ...] = ("tf32", "fp16")


def layer_name(layer: str, precision: Precision) -> str:
    """What a layer is called among those that were built."""
    return layer if precision == "fp32" else f"{layer}-{precision}"


def values(name: str, shape: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What a layer's input of some name holds: random numbers, of matrices small enough that products keep their size."""
    made = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    return made / np.float32(shape[0] ** 0.5) if name[0] == "w" else made


@dataclass(frozen=True, slots=True)
class Timed:
    """A layer at a size: its inputs' shapes, what torch computes, its floating-point operations, and the precision of its
    products."""

    layer: str
    shapes: Shapes
    reference: Callable[..., Any]
    operations: float = 0.0
    precision: Precision = "fp32"


def _timed(torch: Any, small: bool) -> dict[str, Timed]:
    functional = torch.nn.functional
    rows = (5 if small else 1 << 16, _WIDE)  # 256 MB
    image = (1, 5, 5) if small else (8, 56, 56)
    n, h, w = image
    found = {"softmax": Timed("softmax", {"x": rows}, lambda x: torch.softmax(x, -1)),
             "layer_norm": Timed("layer_norm", {"x": rows, "scale": (_WIDE,), "shift": (_WIDE,)},
                                 lambda x, scale, shift: functional.layer_norm(x, (_WIDE,), scale, shift)),
             "transpose": Timed("transpose", {"x": (33, 41) if small else (8192, 8192)}, lambda x: x.T.contiguous()),
             "bias_relu": Timed("bias_relu", {"x": rows, "b": (_WIDE,)}, lambda x, b: torch.relu(x + b)),
             f"convolution of {n}x64x{h}x{w}": Timed(
                 "convolution", {"x": (n, 64, h, w), "w": (64, 64, 3, 3)}, lambda x, w: functional.conv2d(x, w, padding=1),
                 2.0 * n * 64 * h * w * 64 * 9)}
    for m in (1,) if small else (1, 77, 512, 4096):
        found[f"product of {m} rows"] = Timed("product", {"x": (m, _WIDE), "w": (_WIDE, _WIDE)}, torch.mm, 2.0 * m * _WIDE**2)
    for b, t in ((1, 5),) if small else ((1, 77), (8, 64), (8, 512)):
        found[f"attention of {b}x{t}"] = Timed(
            "attention", {name: (b, 12, t, 64) for name in "qkv"}, functional.scaled_dot_product_attention,
            4.0 * b * 12 * t * t * 64)
        wide = 768
        shapes: Shapes = {"x": (b, t, wide), **{f"w{name}": (wide, wide) for name in "qkvo"},
                          **{name: (wide,) for name in ("bq", "bk", "bv", "bo", "s1", "t1", "s2", "t2", "b2")},
                          "w1": (wide, 4 * wide), "b1": (4 * wide,), "w2": (4 * wide, wide)}
        found[f"encoder of {b}x{t}"] = Timed("encoder", shapes, _encoder(functional, list(shapes)),
                                             2.0 * b * t * 12 * wide**2 + 4.0 * b * 12 * t * t * 64)
    return found | {f"{name}, {precision}": replace(one, precision=precision)
                    for precision in REDUCED for name, one in found.items() if one.operations}


def _encoder(functional: Any, names: list[str]) -> Callable[..., Any]:
    """A layer of BERT-base in torch's own functions."""
    def run(*given: Any) -> Any:
        a = dict(zip(names, given))
        b, t, wide = a["x"].shape

        def dense(x: Any, name: str) -> Any:
            return functional.linear(x, a[f"w{name}"].T, a[f"b{name}"])

        q, k, v = (dense(a["x"], name).view(b, t, 12, 64).transpose(1, 2) for name in "qkv")
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, wide)
        first = functional.layer_norm(dense(mixed, "o") + a["x"], (wide,), a["s1"], a["t1"])
        return functional.layer_norm(dense(functional.gelu(dense(first, "1")), "2") + first, (wide,), a["s2"], a["t2"])
    return run


class Seen:
    """A driver that knows the launches of the last graph that was made or set."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._last: Sequence[Launch] | LaunchTable = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    @property
    def launches(self) -> list[Launch]:
        """Those launches."""
        last = self._last
        return [last.launch(row) for row in range(len(last))] if isinstance(last, LaunchTable) else list(last)

    def build_graph(self, launches: Sequence[Launch]) -> Graph:
        self._last = launches
        graph: Graph = self._driver.build_graph(launches)
        return graph

    def set_kernels(self, graph: GraphExec, table: LaunchTable, rows: Sequence[int]) -> None:
        self._last = table
        self._driver.set_kernels(graph, table, rows)


class Kept(Seen):
    """That also keeps the memory that is allocated."""

    def __init__(self, driver: Any) -> None:
        super().__init__(driver)
        self.memory = list[Memory]()

    def allocate(self, size: int, *streams: Stream | None) -> Memory:
        self.memory.append(self._driver.allocate(size, *streams))
        return self.memory[-1]


def measure(session: Session) -> dict[str, Any]:
    """A row each: microseconds of all launches as one graph and of torch's eager kernels as one graph (of the same precision;
    in fp16 its inputs are, where ours are rounded on the way), those of each launch alone, the bytes of inputs and outputs over
    that time, and the worst difference to torch in fp32 as a part of the largest value."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise Skip(str(error)) from error
    where = "cuda" if session.kind == "cuda" and torch.cuda.is_available() else "cpu"
    rows = session.kept.setdefault("rows", {})
    for name, timed in _timed(torch, session.small).items():
        path = session.package(layer_name(timed.layer, timed.precision), "layers")
        if path is not None and name not in rows:
            rows[name] = _row(session, torch, where, path, timed)
            session.save()
    wrong = [name for name, row in rows.items() if not row["apart"] <= (1e-4 if row["precision"] == "fp32" else 5e-3)]
    assert not wrong, f"wrong results: {', '.join(wrong)}"
    return session.kept


def _row(session: Session, torch: Any, where: str, path: Path, timed: Timed) -> dict[str, Any]:
    shapes, kept = timed.shapes, Kept(session.driver)
    feeds = {name: values(name, shape) for name, shape in shapes.items()}
    executable = Executable(Package.read(path), driver=kept)  # type: ignore[arg-type]  # it is what it wraps
    fed = {one.name: feeds[one.name] for one in executable.inputs}
    found = executable.run(None, fed)[0]
    given = [torch.from_numpy(feeds[name]).to(where) for name in shapes]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    want = timed.reference(*given).cpu().numpy()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = timed.precision == "tf32"
    if timed.precision == "fp16":
        given = [x.half() for x in given]
    apart = float(np.abs(found - want).max()) / float(np.abs(want).max()) if session.computes else 0.0
    launches, repeats = kept.launches, 1 if session.small else 7
    microseconds = session.time(launches, repeats) * len(launches)
    after = session.time([replace(one, in_turn=False) for one in launches], repeats) * len(launches)
    each = [] if session.small or len(executable.launches) != len(launches) else [
        [launch.node, round(session.time([one], 5), 2)] for launch, one in zip(executable.launches, launches)]
    row: dict[str, Any] = {"precision": timed.precision, "microseconds": microseconds,
                           "one_after_the_other_microseconds": after, "launches": len(launches),
                           "apart": apart, "each": each}
    amounts: Sequence[tuple[str, float]] = (
        ("gigabytes_per_second", 4e-3 * (sum(map(prod, shapes.values())) + want.size)), ("gflops", 1e-3 * timed.operations))
    row |= {unit: amount / microseconds for unit, amount in amounts if amount and microseconds}
    if where == "cuda":
        row["torch_microseconds"] = torch_graph(torch, lambda: timed.reference(*given))
    session.release(*kept.memory)
    return row
