"""The half of the GPU run that needs a GPU: measure, and write one JSON with the device's name.

    python3 benchmarks/gpu/run.py [--device cuda|emu|stub] [--build build/gpu] [--results benchmarks/results] [--again PART ...]

It needs Python 3.11, NumPy, cuda-bindings (for a GPU) and the folder that benchmarks/gpu/build.py made; torch is used where it
is there. Each part runs in a process of its own, which is stopped when its time is up; parts that are done are not done again,
so a run that was cut short goes on where it was. Exit code 0: every part passed or was skipped with a reason.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # run as a file, on a machine where nothing is installed
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from benchmarks.gpu import configs, conformance, interop, language, launches, throughput, timed, whole  # noqa: E402
from benchmarks.gpu.references import REFERENCES, SHAPES, execute  # noqa: E402
from benchmarks.gpu.session import Again, Record, Session, Skip, find_platform, open_record  # noqa: E402
from tsc.errors import TscError  # noqa: E402
from tsc.runtime.drivers.protocol import DeviceInfo  # noqa: E402

#: Seconds a process of a part may take, and how many processes it may have: those of the last part go on with its rows.
_TIME = {"conformance": (30, 20), "printed": (60, 5), "references": (60, 1), "launches": (30, 1), "arrays": (60, 1),
         "bandwidth": (30, 1), "products": (200, 1), "models": (90, 5), "kernels": (60, 1), "configs": (90, 2),
         "language": (300, 1)}
_GUARD = 4096


def check_references(session: Session) -> dict[str, Any]:
    """Every reference kernel at odd shapes against float64, by its worst element as a multiple of what is allowed."""
    worst: dict[str, dict[str, float]] = {}
    for reference in REFERENCES:
        if not session.has(reference.name):
            continue
        function = session.function(reference.name, reference.name)
        for shape in SHAPES[:2] if session.small else (*SHAPES, (512, 1024, 4096)):
            problem = reference.problem(shape, np.random.default_rng(shape))
            got = execute(reference, session.driver, function, shape, problem, session.stream, _GUARD)
            found = reference.worst(shape, got, problem.expected) if session.computes else 0.0
            worst.setdefault(reference.name, {})["x".join(map(str, shape))] = found
    session.kept["worst"] = worst
    wrong = [f"{name} at {shape}" for name, rows in worst.items() for shape, found in rows.items() if not found <= 1]
    assert not wrong, f"wrong results: {', '.join(wrong)}"
    return session.kept


def run_part(name: str, session: Session, record: Record) -> None:
    """Do one part and record how it went."""
    def keep(cases: list[conformance.Case], results: conformance.Results) -> None:
        if session.kind == "cuda":
            conformance.write_cases(record.path.with_name(f"{record.path.stem}-conformance.npz"), cases, results)

    work: dict[str, Callable[[Session], dict[str, Any]]] = {
        "conformance": lambda session: conformance.measure(session, keep), "references": check_references,
        "printed": lambda session: conformance.measure(session, lambda cases, results: None, "printed"),
        "launches": launches.measure, "bandwidth": throughput.bandwidth, "products": throughput.products,
        "models": whole.measure, "arrays": interop.measure, "kernels": timed.measure,
        "configs": configs.measure, "language": language.measure}
    entry = record.parts[name]
    start = time.perf_counter()
    try:
        entry["results"] = work[name](session)
        entry["state"] = "done"
    except Again as reason:
        entry |= {"state": "again", "reason": str(reason)}
    except Skip as reason:
        entry |= {"state": "skipped", "reason": str(reason)}
    except Exception as error:
        entry |= {"state": "failed", "reason": f"{type(error).__name__}: {error}",
                  "trace": traceback.format_exc().splitlines()[-6:]}
    entry["seconds"] = round(time.perf_counter() - start, 3)
    record.save()


def run_here(name: str, options: argparse.Namespace, manifest: dict[str, Any]) -> None:
    """Open the device and do one part in this process."""
    driver = find_platform(options.device).open()
    record = open_record(options.results, options.device, driver.info, manifest["build"], options.small)
    entry = record.parts.setdefault(name, {"results": {}})
    entry["state"] = "begun"
    for old in ("reason", "trace"):
        entry.pop(old, None)
    session = Session(options.device, driver, options.build, manifest, options.small, entry["results"], record.save)
    run_part(name, session, record)
    driver.close()


def spawn(name: str, options: argparse.Namespace, seconds: int) -> str:
    """Do one part in a process of its own, and say how that ended."""
    command = [sys.executable, __file__, "--one", name, "--device", options.device, "--build", str(options.build),
               "--results", str(options.results), *(["--small"] if options.small else [])]
    try:
        return f"its process ended with status {subprocess.run(command, timeout=seconds, check=False).returncode}"
    except subprocess.TimeoutExpired:
        return f"its process was stopped after {seconds} s"


def run_all(options: argparse.Namespace, manifest: dict[str, Any], info: DeviceInfo) -> Record:
    """Each part that is not done yet, in a process of its own."""
    for name in options.parts or _TIME:
        record = open_record(options.results, options.device, info, manifest["build"], options.small)
        state = record.parts.get(name, {}).get("state")
        if name in options.again:
            record.parts.pop(name, None)
            record.save()
        elif state in ("done", "skipped"):
            continue
        seconds, processes = _TIME[name]
        for _ in range(processes):
            reason = spawn(name, options, seconds)
            record = open_record(options.results, options.device, info, manifest["build"], options.small)
            entry = record.parts.setdefault(name, {"results": {}})
            if entry.get("state") not in (None, "begun", "again"):
                break
            entry |= {"state": "failed", "reason": entry.get("reason", reason)}
            record.save()
        print(f"{name}: {entry['state']} {entry.get('reason', '')}".rstrip(), flush=True)
    return open_record(options.results, options.device, info, manifest["build"], options.small)


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description="Measure a GPU with what benchmarks/gpu/build.py built.")
    parser.add_argument("--device", choices=("cuda", "emu", "stub"), default="cuda")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--parts", nargs="*", choices=tuple(_TIME), help="only these")
    parser.add_argument("--again", nargs="*", choices=tuple(_TIME), default=[], help="these again, though they are done")
    parser.add_argument("--small", action="store_true", help="small sizes and few repetitions, to try the run itself")
    parser.add_argument("--one", choices=tuple(_TIME), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    manifest = json.loads((options.build / "manifest.json").read_text(encoding="utf-8"))
    if options.one:
        run_here(options.one, options, manifest)
        return 0
    try:
        device = find_platform(options.device).devices()[0]
    except TscError as error:  # the machine's: no binding, no driver, too old a driver
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 4
    record = run_all(options, manifest, device)
    states = ", ".join(f"{name} {part['state']}" for name, part in record.parts.items())
    print(f"{record.path}: {states}")
    return int(any(part["state"] == "failed" for part in record.parts.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
