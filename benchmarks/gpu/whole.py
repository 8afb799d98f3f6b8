"""Whole models on the device: a Package loaded and run at several shapes, beside the outputs that ONNX Runtime gave."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.session import Again, Session, Skip
from tsc.errors import LaunchError, TscError
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package

Arrays = dict[str, NDArray[Any]]
RUNS = 20


def measure(session: Session) -> dict[str, Any]:
    """By model and shape: how far off the worst element is, as a multiple of what is allowed, and the milliseconds of a run
    with its copies, the best of some after a first. A model that fails is noted, and the others go on (raises Again where the
    device went with it)."""
    with np.load(session.folder / session.manifest["models"]) as file:
        arrays = dict(file)
    failed: dict[str, str] = session.kept.setdefault("failed", {})
    rows: dict[str, dict[str, dict[str, float]]] = session.kept.setdefault("rows", {})
    for name in session.manifest["packages"]:
        if name in rows or name in failed:
            continue
        failed[name] = "its process ended"
        session.save()
        try:
            rows[name] = _rows(session, name, {key.removeprefix(f"{name}/"): array for key, array in arrays.items()
                                               if key.startswith(f"{name}/")})
            del failed[name]
        except TscError as error:
            failed[name] = f"{type(error).__name__}: {error}"
            try:
                session.driver.synchronize()
            except LaunchError:
                raise Again(f"'{name}' fails: {error}") from error
        session.save()
    wrong = [f"{name} at {shape}" for name, row in rows.items() for shape, found in row.items() if not found["worst"] <= 1]
    assert not wrong and not failed, f"wrong results: {', '.join(wrong)}; failed: {', '.join(failed)}"
    return session.kept


def _rows(session: Session, name: str, arrays: Arrays) -> dict[str, dict[str, float]]:
    path = session.package(name)
    if path is None:
        raise Skip(f"no model was built for {session.driver.info.arch}")
    relative, absolute = session.manifest["tolerances"][name]
    executable = Executable(Package.read(path), driver=session.driver)
    found = {}
    for shape in list(dict.fromkeys(key.partition("/")[0] for key in arrays))[:2 if session.small else None]:
        own = {key.removeprefix(f"{shape}/"): array for key, array in arrays.items() if key.startswith(f"{shape}/")}
        feeds = {key.removeprefix("in/"): array for key, array in own.items() if key.startswith("in/")}
        outputs, worst = executable.run(None, feeds), 0.0
        for k, got in enumerate(outputs if session.computes else ()):
            want = own[f"out/{k}"]
            assert got.shape == want.shape, f"{name} at {shape}: {got.shape} instead of {want.shape}"
            apart = np.abs(got.astype(np.float64) - want) / (absolute + relative * np.abs(want))
            worst = max(worst, float(apart.max(initial=0)))
        times = []
        for _ in range(2 if session.small else RUNS):
            begin = time.perf_counter()
            executable.run(None, feeds)
            times.append(time.perf_counter() - begin)
        found[shape] = {"worst": worst, "ms": round(min(times) * 1e3, 4)}
    return found
