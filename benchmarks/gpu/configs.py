"""Products of fp32 in several configs at many sizes: what the Rates of a GPU's Variants are fitted to.

    python -m benchmarks.gpu.fit benchmarks/results/gpu-....json     prints the table of tsc/tune/untuned.py

A config's Rates are femtoseconds of a step of k, so that they hold for any product; the products here are those of few and
many columns and steps.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from benchmarks.gpu.session import Session, Skip
from benchmarks.gpu.timed import Kept
from tsc.errors import InputError
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package

#: Columns and terms of the products, and the numbers of their rows.
PRODUCTS = ((256, 512), (768, 768), (768, 3072), (3072, 768))
ROWS = (1, 16, 40, 77, 128, 200, 300, 512, 777, 1024, 2048, 4096)
#: A kernel is timed in a row of so many, as models run them: what a graph of one takes differs by 2 us from config to config.
_IN_A_ROW = 8


def measure(session: Session) -> dict[str, Any]:
    """A row for each config, product and number of rows: its blocks and steps, and microseconds of a launch in a graph."""
    table = session.manifest.get("configs", {})
    if not table or session.kind != "cuda":
        raise Skip("no configs were built" if not table else "times of an emulator say nothing")
    rows = session.kept.setdefault("rows", [])
    rng = np.random.default_rng(0)
    done = {(row["precision"], row["config"], row["n"], row["k"]) for row in rows}
    for name, entry in table.items():
        config, (n, k) = json.dumps(entry["config"]), entry["product"]
        package = session.package(name, "configs_files")
        if package is None or (entry["precision"], config, n, k) in done:
            continue
        w = rng.standard_normal((k, n), np.float32) / np.float32(k**0.5)
        for m in ROWS[:2] if session.small else ROWS:
            rows.append({"config": config, "n": n, "k": k, "m": m, "resident": entry["resident"],
                         "precision": entry["precision"],
                         **_timed(session, Package.read(package), rng.standard_normal((m, k), np.float32), w)})
        session.save()
    wrong = [f"{row['config']} at {row['m']}x{row['n']}x{row['k']}" for row in rows
             if not row["apart"] <= (1e-5 if row["precision"] == "fp32" else 2e-3)]
    assert not wrong, f"wrong results: {', '.join(wrong)}"
    return session.kept


def _timed(session: Session, package: Package, x: Any, w: Any) -> dict[str, Any]:
    kept = Kept(session.driver)
    executable = Executable(package, driver=kept)  # type: ignore[arg-type]  # it is what it wraps
    found, want = executable.run(None, {"x": x, "w": w})[0], x.astype(np.float64) @ w
    (call,) = executable.launches[-1].calls  # behind those that round its operands
    names = next(({name: len(x)} for name in call.blocks.dims()), {})
    if call.cost is None:
        raise InputError("a config has no work that is counted")
    time = session.time(kept.launches[-1:] * _IN_A_ROW, 7)
    session.release(*kept.memory)
    return {"blocks": call.blocks.evaluate(names), "work": {w.kind: w.count.evaluate(names) for w in call.cost.work},
            "microseconds": round(time, 3), "apart": float(np.abs(found - want).max() / np.abs(want).max())}
