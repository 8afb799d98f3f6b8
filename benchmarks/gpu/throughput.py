"""Copy bandwidth, matrix products: the vendor's (through torch) and the reference kernels', on random data beyond the cache."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.references import REFERENCES, Array, Reference, Shape, to_bf16, upload
from benchmarks.gpu.session import Session

_MS = (1, 16, 77, 512, 4096, 8192)
#: (K, N) of BERT-large (queries, keys and values together; output; feed-forward up and down), then of Llama-7B.
_KNS = ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024), (4096, 12288), (4096, 4096), (4096, 11008), (11008, 4096))
_GEMMS = {"gemm_f16_sm80": "float16", "gemm_bf16_sm90a": "bfloat16"}
_MOST_SETS = 64


def bandwidth(session: Session) -> dict[str, Any]:
    """Bytes read plus bytes written a second by device-to-device copies, in GB/s, by size."""
    driver, stream = session.driver, session.stream
    found = {}
    for size in (1 << 16, 1 << 20) if session.small else (1 << 20, 1 << 24, 1 << 28, 1 << 32):
        source, target = driver.allocate(size), driver.allocate(size)
        driver.fill(source, 0x5A, stream)
        start, stop = driver.create_event(timing=True), driver.create_event(timing=True)
        times = []
        for _ in range(3 if session.small else 12):
            driver.record(start, stream)
            driver.copy(target, source, size, stream)
            driver.record(stop, stream)
            driver.synchronize(stream)
            times.append(driver.elapsed(start, stop))
        found[str(size)] = _rate(2 * size / 1e9, float(np.median(times[2:])) / 1e3)
        session.release(source, target)
    return {"gigabytes_per_second": found}


def products(session: Session) -> dict[str, Any]:
    """One row a shape: microseconds and TFLOP/s of each kernel that runs here and of torch, in fp16 and bf16. Rows are kept as
    they come. The kernels' results are checked at a sample of rows and columns, `worst` being the largest error as a
    multiple of what is allowed."""
    rows = session.kept.setdefault("rows", {})
    kernels = [r for r in REFERENCES if r.name in _GEMMS and session.has(r.name)]
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        torch = None
        session.kept["torch"] = f"skipped: {error}"
    else:
        session.kept["torch"] = f"{torch.__version__} on {'cuda' if _on_gpu(session, torch) else 'the CPU'}"
    for k, n in ((64, 72),) if session.small else _KNS:
        for m in (1, 77) if session.small else _MS:
            name = f"{m}x{n}x{k}"
            if name in rows:
                continue
            row = {kernel.name: _product(session, kernel, (m, n, k)) for kernel in kernels}
            if torch is not None:
                for kind in _GEMMS.values():
                    row[f"torch_{kind}"] = _torch_product(session, torch, kind, (m, n, k))
            rows[name] = row
            session.save()
    wrong = [f"{kernel} at {name}" for name, row in rows.items() for kernel, found in row.items()
             if not found.get("worst", 0) <= 1]
    assert not wrong, f"wrong results: {', '.join(wrong)}"
    return session.kept


def _product(session: Session, kernel: Reference, shape: Shape) -> dict[str, float]:
    """Launches over as many sets of operands as do not fit in the cache."""
    m, n, k = shape
    driver, stream = session.driver, session.stream
    function = session.function(kernel.name, kernel.name)
    random = np.random.default_rng(m + n + k)
    narrow: Callable[[Array], Array] = to_bf16 if _GEMMS[kernel.name] == "bfloat16" else lambda x: x.astype(np.float16)
    pool = narrow(random.standard_normal(min(1 << 22, max(m, n) * k), dtype=np.float32))
    a, b = (np.resize(np.roll(pool, turn), sizes) for turn, sizes in ((0, (m, k)), (1, (k, n))))
    sets = [(upload(driver, a, stream), upload(driver, b, stream), driver.allocate(2 * m * n))
            for _ in range(_sets(session, shape))]
    for *_, output in sets:
        driver.fill(output, 0xFF, stream)
    microseconds = session.time([kernel.launch(driver, function, shape, inputs, output) for *inputs, output in sets],
                                1 if session.small else 7)
    found = {**_figures(shape, microseconds), "worst": 0.0}
    if session.computes:
        found["worst"] = _sample(session, kernel, shape, (a, b), sets[-1][2])
    session.release(*(memory for one in sets for memory in one))
    return found


def _sample(session: Session, kernel: Reference, shape: Shape, operands: tuple[Array, Array], output: Any) -> float:
    m, n, _ = shape
    rows = sorted({0, m // 3, m // 2, m - 1})
    columns = np.unique(np.linspace(0, n - 1, 64).astype(int))
    got = np.empty((len(rows), n), operands[0].dtype)
    for place, row in enumerate(rows):
        session.driver.download(got[place], output, session.stream, row * n * 2)
    session.driver.synchronize(session.stream)
    a, b = kernel.widen(operands[0][rows]), kernel.widen(operands[1][:, columns])
    return kernel.worst(shape, got[:, columns], a @ b)


def _torch_product(session: Session, torch: Any, kind: str, shape: Shape) -> dict[str, float]:
    m, n, k = shape
    dtype = getattr(torch, kind)
    where = "cuda" if _on_gpu(session, torch) else "cpu"
    sets = [(torch.randn(m, k, device=where).to(dtype), torch.randn(k, n, device=where).to(dtype),
             torch.empty(m, n, device=where, dtype=dtype)) for _ in range(_sets(session, shape))]

    def all_sets() -> None:
        for a, b, out in sets:
            torch.mm(a, b, out=out)

    timed = torch_graph(torch, all_sets) if where == "cuda" else _host_time(all_sets)
    return _figures(shape, timed / len(sets))


def torch_graph(torch: Any, call: Callable[[], object]) -> float:
    """Microseconds of one replay of what `call` does, the median of 7."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    times = []
    for _ in range(7):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return float(np.median(times)) * 1e3


def _host_time(call: Callable[[], None]) -> float:
    call()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def _on_gpu(session: Session, torch: Any) -> bool:
    return session.kind == "cuda" and bool(torch.cuda.is_available())


def _sets(session: Session, shape: Shape) -> int:
    m, n, k = shape
    size = 2 * (m * k + k * n + m * n)
    return 2 if session.small else min(_MOST_SETS, max(2, -(-2 * session.driver.info.l2_bytes // size)))


def _figures(shape: Shape, microseconds: float) -> dict[str, float]:
    m, n, k = shape
    return {"microseconds": microseconds, "tflops": _rate(2e-12 * m * n * k, microseconds / 1e6)}


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0
