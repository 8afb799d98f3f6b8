"""Whole models on the device: a Package loaded and run at several shapes, beside the outputs that ONNX Runtime gave."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.gpu.session import Session, Skip
from tsc.runtime.executable import Executable
from tsc.runtime.package import Package

#: How far outputs may be off: fp32 throughout, sums in another order, functions of a few ulp.
RELATIVE, ABSOLUTE, RUNS = 2e-4, 2e-5, 20


def measure(session: Session) -> dict[str, Any]:
    """By model and shape: how far off the worst element is, as a multiple of what is allowed, and the milliseconds of a run
    with its copies, the best of some after a first."""
    with np.load(session.folder / session.manifest["models"]) as file:
        arrays = dict(file)
    wrong = []
    for name in session.manifest["packages"]:
        path = session.package(name)
        if path is None:
            raise Skip(f"no model was built for {session.driver.info.arch}")
        executable = Executable(Package.read(path), driver=session.driver)
        shapes = dict.fromkeys(key.split("/")[1] for key in arrays if key.startswith(f"{name}/"))
        for shape in list(shapes)[:2 if session.small else None]:
            place = f"{name}/{shape}/"
            own = {key.removeprefix(place): array for key, array in arrays.items() if key.startswith(place)}
            feeds = {key.removeprefix("in/"): array for key, array in own.items() if key.startswith("in/")}
            found, worst = executable.run(None, feeds), 0.0
            for k, got in enumerate(found if session.computes else ()):
                want = own[f"out/{k}"]
                assert got.shape == want.shape, f"{name} at {shape}: {got.shape} instead of {want.shape}"
                worst = max(worst, float((np.abs(got - want) / (ABSOLUTE + RELATIVE * np.abs(want))).max(initial=0)))
            times = []
            for _ in range(2 if session.small else RUNS):
                begin = time.perf_counter()
                executable.run(None, feeds)
                times.append(time.perf_counter() - begin)
            session.kept.setdefault(name, {})[shape] = {"worst": worst, "ms": round(min(times) * 1e3, 4)}
            session.save()
            wrong += [f"{name} at {shape}"] if not worst <= 1 else []
    assert not wrong, f"wrong results: {', '.join(wrong)}"
    return session.kept
