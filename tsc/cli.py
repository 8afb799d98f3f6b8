"""`python -m tsc compile | run | explain | doctor`: the public API from a shell.

Results go to stdout (as JSON with `--json`), progress and errors to stderr. Exit codes: 0 done, 2 wrong usage, 3 a wrong
model, request or Package, 4 the machine could not do it, 5 a bug in `tsc`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from tokenize import TokenError
from typing import Any, NoReturn, get_args

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import tsc
from tsc.bench import bench
from tsc.cli_output import FILE, answer, as_json
from tsc.cli_pack import pack
from tsc.cli_tune import Seconds, Wanted, tune_model
from tsc.codegen_cuda.specs import CUDA_SPECS
from tsc.config import Precision, Reduction
from tsc.diagnosis import diagnose, machine_facts
from tsc.draw import shortened
from tsc.errors import InputError, InternalError, LaunchError, ShapeError, TscError, typed
from tsc.explain import explain_node
from tsc.kernels import workshop
from tsc.pipeline import build_package
from tsc.roofline import work_of
from tsc.runtime.executable import Executable
from tsc.runtime.export import export
from tsc.runtime.feeds import random_feeds
from tsc.runtime.files import open_regular, write_atomically
from tsc.runtime.package import Package, is_package
from tsc.runtime.plan import TensorSpec
from tsc.serve.command import serve_command
from tsc.sol.explain import explain_light
from tsc.tuning import Effort, points_of

EXIT_USER, EXIT_MACHINE, EXIT_BUG = 3, 4, 5
PROFILE_RUNS = 5
_DIGITS = 100  # of a size

target_option = click.option("--target", default="cpu", show_default=True, help="What to compile for; 'cpu' is this machine.")
threads_option = click.option("--threads", type=click.IntRange(min=1), default=None, help="Worker threads; default: all cores.")
ranges_option = click.option("--dim", "--dims", "dims", multiple=True, metavar="NAME=LO:HI,..",
                             help="Sizes dims may take: batch=1:64, batch=8, or seq=1: (no upper end). Repeatable.")
shapes_option = click.option("--shape", "shapes", multiple=True, metavar="INPUT=SIZES",
                             help="An input's shape: x=N,3,H,* of sizes, dim names and * for what the model says. Repeatable.")
sizes_option = click.option("--size", "sizes", multiple=True, metavar="NAME=SIZE", help="The size of a dim. Repeatable.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tsc.__version__, prog_name="tsc")
def cli() -> None:
    """Compile dynamic-shape ONNX models once; run them at any shape."""


cli.add_command(pack)
cli.add_command(serve_command)


@cli.command("compile")
@click.argument("model", type=FILE)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The Package to write.")
@target_option
@ranges_option
@shapes_option
@click.option("--precision", type=click.Choice(get_args(Precision)), default="fp32", show_default=True,
              help="Of products, where the target has instructions for it.")
@as_json
def compile_command(model: Path, output: Path, target: str, dims: Sequence[str], shapes: Sequence[str], precision: Precision,
                    json_: bool) -> None:
    """Compile MODEL (an ONNX file) into a Package that `run` and `tsc.load` take, here or on a machine of another kind."""
    started = time.perf_counter()
    with _compiling(model, target) as options:
        shop = workshop(target, replace(options, precision=precision))
        package = typed(build_package)(model, _dims(dims, shapes), shop)
    with _progress(f"writing {output}"):
        package.write(output)
    seconds, plan = time.perf_counter() - started, next(iter(package.plans.values()))
    answer(json_, {
        "model": str(model), "package": str(output), "bytes": output.stat().st_size, "seconds": round(seconds, 3),
        "inputs": [_describe(spec) for spec in plan.inputs], "outputs": [_describe(spec) for spec in plan.outputs],
    }, [f"compiled {model} in {seconds:.1f} s into {output} ({output.stat().st_size / 1e6:.1f} MB)",
        *(f"  input  {spec.name}: {_type(spec)}" for spec in plan.inputs),
        *(f"  output {spec.name}: {_type(spec)}" for spec in plan.outputs)])


@cli.command("run")
@click.argument("file", type=FILE)
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input from a NumPy file. Repeatable.")
@click.option("--random", "random_", is_flag=True, help="Fill the inputs not given with random data (integers: 0 or 1).")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of --random.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True, help="Runs; the best time is told.")
@click.option("--profile", is_flag=True, help="Time each kernel alone, too.")
@click.option("--trace", type=click.Path(dir_okay=False, path_type=Path),
              help="A file for these times, launch by launch, as chrome://tracing and Perfetto show them.")
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for the outputs, as NAME.npy.")
@sizes_option
@ranges_option
@shapes_option
@target_option
@threads_option
@as_json
def run_command(file: Path, inputs: Sequence[str], random_: bool, seed: int, repeat: int, profile: bool, trace: Path | None,
                output: Path | None, sizes: Sequence[str], dims: Sequence[str], shapes: Sequence[str], target: str,
                threads: int | None, json_: bool) -> None:
    """Run FILE (a Package, or an ONNX model, which is compiled first)."""
    executable = _open(file, _dims(dims, shapes), target, threads)
    feeds = _read_feeds(inputs)
    if random_:
        feeds |= _random_feeds([spec for spec in executable.inputs if spec.name not in feeds], _sizes(sizes), seed)
    best, results = float("inf"), []
    for _ in range(repeat):
        started = time.perf_counter()
        results = executable.run(None, feeds)
        best = min(best, time.perf_counter() - started)
    named = dict(zip((spec.name for spec in executable.outputs), results))
    profiled = executable.profile(feeds, max(repeat, PROFILE_RUNS)) if profile or trace else None
    if trace is not None and profiled is not None:
        write_atomically(trace, [profiled.chrome_trace().encode()])
    if output is not None:
        _write_outputs(output, named)
    answer(json_, {
        "milliseconds": round(best * 1000, 4),
        "outputs": [{"name": name, "dtype": str(value.dtype), "shape": list(value.shape), **_summary(value)}
                    for name, value in named.items()],
        **({} if profiled is None else {"kernels": [asdict(row) for row in profiled.kernels]}),
    }, [f"{best * 1000:.3f} ms",
        *(f"  {name}: {value.dtype}{list(value.shape)}" + "".join(f" {k} {x:.6g}" for k, x in _summary(value).items())
          for name, value in named.items()),
        *([] if profiled is None else [str(profiled)])])


@cli.command("bench")
@click.argument("file", type=FILE)
@click.option("--at", "points", multiple=True, metavar="NAME=SIZE,..", help="A shape to time: batch=1,seq=12. Repeatable; "
              "default: the ends of the dims' ranges and between them.")
@click.option("--against", default="", metavar="RUNTIME,..", help="Other runtimes: onnxruntime, openvino.")
@click.option("--model", type=FILE, default=None, help="The ONNX model, for other runtimes where FILE is a Package.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random inputs.")
@ranges_option
@shapes_option
@target_option
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Cores that each runtime may use.")
@as_json
def bench_command(file: Path, points: Sequence[str], against: str, model: Path | None, seed: int, dims: Sequence[str],
                  shapes: Sequence[str], target: str, threads: int, json_: bool) -> None:
    """Time FILE (a Package, or an ONNX model, which is compiled first) at some shapes, beside other runtimes: each in a process
    of its own, in turns, on the same random inputs; first runs at a shape, memory, and whether outputs agree as well."""
    work = None
    if is_package(file):
        package = Package.read(file)
    else:
        model = model or file
        with _compiling(file, target) as options:
            package = typed(build_package)(file, _dims(dims, shapes), workshop(target, options))
            work = typed(work_of)(file, _dims(dims, shapes), workshop(target, options)) if threads == 1 else None
    ranges = next(iter(package.plans.values())).ranges
    given = [_sizes(text.split(","), "--at") for text in points] or points_of(ranges, 3, seed)
    found = bench(package, model, given, list(filter(None, against.split(","))), threads, seed, work)
    answer(json_, found.facts(), found.lines())


@cli.command("export")
@click.argument("file", type=FILE)
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), required=True, help="The folder to write to.")
@click.option("--name", default=None, help="What files are called; default: as FILE is.")
@click.option("--target", default=None, help="A CPU that the Package has code for; default: the best for this machine.")
@as_json
def export_command(file: Path, output: Path, name: str | None, target: str | None, json_: bool) -> None:
    """Write FILE (a Package) as a library, a file of weights and a header for programs in C, which then need no Python."""
    found = export(Package.read(file), output, file.name.removesuffix(".tscpack") if name is None else name, target)
    files = [found.library, found.data, found.header]
    answer(json_, {
        "target": found.target, "files": list(map(str, files)),
        "inputs": [_describe(spec) for spec in found.inputs], "outputs": [_describe(spec) for spec in found.outputs],
    }, [f"exported for {found.target}: {', '.join(map(str, files))}",
        *(f"  input  {spec.name}: {_type(spec)}" for spec in found.inputs),
        *(f"  output {spec.name}: {_type(spec)}" for spec in found.outputs)])


@cli.command("explain")
@click.argument("file", type=FILE)
@click.option("--node", default=None, metavar="NAME", help="Tell all about the kernel of one node (of an ONNX model).")
@click.option("--sol", is_flag=True, help="Speed of light: how fast a GPU could run each Variant at most, and what bounds it.")
@click.option("--precision", type=click.Choice(get_args(Precision)), default=None, help="Of products, for --sol.")
@sizes_option
@ranges_option
@shapes_option
@target_option
@threads_option
@as_json
def explain_command(file: Path, node: str | None, sol: bool, precision: Precision | None, sizes: Sequence[str],
                    dims: Sequence[str], shapes: Sequence[str], target: str, threads: int | None, json_: bool) -> None:
    """Say what FILE compiles to: kernels, what was fused or not and why, memory; with --size, at that shape.

    With --node: why its kernel was fused, its statements, dependences and schedule after each step, and its memory traffic.
    With --sol, a --target that is a GPU and a --size of every dim: the cycles that tensor cores, shared memory, instructions,
    L2 and DRAM take at least; no GPU is needed.
    """
    if precision is not None and not sol:
        raise click.UsageError("--precision is for --sol here")
    if sol:
        _check_sol(file, node, target)
        with _compiling(file, target) as options:
            text = explain_light(file, _sizes(sizes), target, _dims(dims, shapes), options, precision or "fp32")
    elif node is None:
        text = _open(file, _dims(dims, shapes), target, threads).explain(**_sizes(sizes))
    elif is_package(file):
        raise click.UsageError("--node wants an ONNX model; a Package keeps kernels, not how they were made")
    else:
        with _progress(f"scheduling '{node}'"):
            text = explain_node(file, node, dims=_dims(dims, shapes), target=target, sizes=_sizes(sizes))
    answer(json_, {"explain": text.splitlines()}, [text])


@cli.command("tune")
@click.argument("model", type=FILE)
@click.option("-o", "--out", "output", type=click.Path(dir_okay=False, path_type=Path), help="The tuned Package to write.")
@click.option("--records", type=click.Path(dir_okay=False, path_type=Path), default=Path("records.jsonl"), show_default=True,
              help="Where measurements are kept; what is there is not measured again, so that a job can be resumed.")
@click.option("--budget", type=Seconds(), default="10m", show_default=True,
              help="How long to search, in all: each kernel has some configs, and the best are measured again after it.")
@click.option("--configs", type=click.IntRange(min=1), default=64, show_default=True, help="Configs of a kernel, at most.")
@click.option("--variants", type=click.IntRange(min=1, max=16), default=4, show_default=True, help="Of them kept, at most.")
@click.option("--reduction", type=click.Choice(get_args(Reduction)), default="fixed", show_default=True,
              help="'fast' also tries Variants that sum in another order, in chunks that cores share.")
@click.option("--traffic", type=FILE, help="Sizes that users ask for: an object of dims a line, as {\"seq\": 128}.")
@click.option("--search", type=click.Choice(["turbo", "random"]), default=None,
              help="Bayesian, in trust regions (the extra 'tune'), or at random. Default: the first, where it is installed.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the search.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path),
              help="An HTML file to write: expected times over the range, what runs where, what was measured.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True,
              help="Kernels tuned at a time, each in a process; they measure in turns.")
@click.option("--ray", metavar="ADDRESS", help="Tune on a Ray cluster; 'local': on this machine, with --workers (extra 'ray').")
@click.option("--build", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Build --configs of each kernel that have no records, and measure nothing: `python -m tsc.tune FOLDER "
                   "RECORDS` does, on another machine.")
@click.option("--dry-run", is_flag=True, help="Say what would be tuned, and measure nothing.")
@target_option
@ranges_option
@shapes_option
@as_json
def tune_command(model: Path, target: str, dims: Sequence[str], shapes: Sequence[str], json_: bool, budget: float, configs: int,
                 search: str | None, seed: int, **others: Any) -> None:
    """Measure the kernels of MODEL with many configs over the sizes of its dims, and keep the fastest for each size.

    Without --traffic they are measured over the ranges that --dim declares. Measurements are kept as they are made: a job that
    is stopped goes on where it was.
    """
    wanted = Wanted(effort=Effort(configs, budget, search, seed), **others)
    facts, lines = tune_model(model, _dims(dims, shapes), target, wanted, lambda line: click.echo(line, err=True))
    answer(json_, facts, lines)


@cli.command("doctor")
@click.argument("model", type=FILE, required=False)
@ranges_option
@shapes_option
@target_option
@as_json
def doctor_command(model: Path | None, dims: Sequence[str], shapes: Sequence[str], target: str, json_: bool) -> None:
    """Say what `tsc` finds on this machine; exit code 4 when it could not compile here. With MODEL (an ONNX file) what it has,
    what is known of its dims and why, and whether it compiles, without compiling it; else all that is unsupported."""
    if model is not None:
        found = typed(diagnose)(model, _dims(dims, shapes), workshop(target, tsc.Options()))
        answer(json_, found.facts(), found.lines())
        return
    facts, lines = machine_facts()
    answer(json_, facts, lines)
    if facts["problem"]:
        raise SystemExit(EXIT_MACHINE)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit; every error becomes one sentence and an exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        result = cli.main(args, prog_name="tsc", standalone_mode=False)
        raise SystemExit(result if isinstance(result, int) else 0)
    except click.Abort:
        raise SystemExit(130) from None
    except click.ClickException as error:
        error.show()
        raise SystemExit(2) from None
    except BrokenPipeError:  # whoever read the results has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except MemoryError:
        _fail(args, LaunchError("not enough memory; use smaller sizes"), EXIT_MACHINE)
    except OSError as error:
        what = f"'{error.filename}': " if error.filename else ""
        _fail(args, LaunchError(f"the system refused {what}{error.strerror or error}"), EXIT_MACHINE)
    except InternalError as error:
        _fail(args, error, EXIT_BUG)
    except LaunchError as error:
        _fail(args, error, EXIT_MACHINE)
    except TscError as error:
        _fail(args, error, EXIT_USER)


def tune_main() -> NoReturn:
    """`tsc-tune`, which is `tsc tune`."""
    main(["tune", *sys.argv[1:]])


def _fail(args: Sequence[str], error: TscError, code: int) -> NoReturn:
    if "--json" in args:
        click.echo(json.dumps({"error": type(error).__name__, "message": str(error)}))
    else:
        click.echo(f"{type(error).__name__}: {error}", err=True)
    raise SystemExit(code) from None


@contextmanager
def _progress(what: str) -> Iterator[None]:
    """A spinner with the time so far, on stderr and only on a terminal."""
    with Console(stderr=True).status(what):
        yield


@contextmanager
def _compiling(model: Path, target: str) -> Iterator[tsc.Options]:
    """Options that show how far compiling is."""
    with Console(stderr=True).status(f"compiling {model} for {target}") as status:
        def tell(what: str, done: int, total: int) -> None:
            status.update(f"compiling {model} for {target}: {what}, {done} of {total}")

        yield tsc.Options(progress=tell)


def _compile(model: Path, dims: dict[str, Any] | None, target: str, threads: int | None) -> Executable:
    with _compiling(model, target) as options:
        return tsc.compile(model, dims=dims, target=target, threads=threads, options=options)


def _open(file: Path, dims: dict[str, Any] | None, target: str, threads: int | None) -> Executable:
    """An Executable from a Package, or from a model by compiling it."""
    if not is_package(file):
        return _compile(file, dims, target, threads)
    if dims:
        raise click.UsageError("--dim and --shape want an ONNX model; a Package is compiled already")
    return tsc.load(file, threads=threads)


def _check_sol(file: Path, node: str | None, target: str) -> None:
    """Raise UsageError where --sol makes no sense."""
    if node is not None:
        raise click.UsageError("--sol is about all launches of a model; leave --node out")
    if is_package(file):
        raise click.UsageError("--sol wants an ONNX model; a Package keeps kernels, not their text")
    if target not in CUDA_SPECS:
        raise click.UsageError(f"--sol is about GPUs, and '{target}' is none; give --target one of {', '.join(CUDA_SPECS)}")


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(f"{option} wants NAME=VALUE, not '{text}'")
    return name, value


def _integer(text: str, option: str) -> int:
    if not text.isdecimal() or len(text) > _DIGITS:
        raise click.UsageError(f"{option} wants a whole number of at most {_DIGITS} digits, not '{shortened(text)}'")
    return int(text)


#: The commas of `batch=1:32,seq=1:512`.
_BETWEEN_RANGES = re.compile(r"(?<=[\d:]),(?=[^,=]+=)")


def _dims(ranges: Sequence[str], shapes: Sequence[str]) -> dict[str, Any] | None:
    """`--dim` and `--shape` options as what `tsc.compile` takes as `dims`."""
    found: dict[str, Any] = {}
    for text in shapes:
        name, value = _pair(text, "--shape")
        entries = [entry.strip() for entry in value.split(",")]
        found[name] = tuple(None if e == "*" else _integer(e, "--shape") if e.isdecimal() else e for e in entries)
    for text in chain.from_iterable(map(_BETWEEN_RANGES.split, ranges)):
        name, value = _pair(text, "--dim")
        low, colon, high = value.partition(":")
        least = _integer(low, "--dim")
        found[name] = (least, (_integer(high, "--dim") if high else None) if colon else least)
    return found or None


def _sizes(options: Sequence[str], option: str = "--size") -> dict[str, int]:
    pairs = (_pair(text, option) for text in options)
    return {name: _integer(value, option) for name, value in pairs}


def _read_feeds(options: Sequence[str]) -> dict[str, NDArray[Any]]:
    feeds: dict[str, NDArray[Any]] = {}
    for text in options:
        name, file = _pair(text, "--input")
        try:
            with open_regular(Path(file)) as opened:
                feeds[name] = np.lib.format.read_array(opened, allow_pickle=False)
        except (OSError, ValueError, EOFError, MemoryError, SyntaxError, TokenError) as error:
            raise click.UsageError(f"--input {name}: cannot read '{file}' as a .npy file ({error})") from None
    return feeds


def _random_feeds(specs: Sequence[TensorSpec], sizes: dict[str, int], seed: int) -> dict[str, NDArray[Any]]:
    try:
        return random_feeds(specs, sizes, seed)
    except (InputError, ShapeError) as error:
        raise click.UsageError(f"--random with --size: {error}") from None


def _write_outputs(folder: Path, outputs: dict[str, NDArray[Any]]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in outputs.items():
            np.save(folder / f"{name.replace('/', '_')}.npy", value)
    except (OSError, ValueError) as error:
        raise LaunchError(f"cannot write the outputs to '{folder}' ({error}); choose a writable folder") from None


def _summary(value: NDArray[Any]) -> dict[str, float]:
    if not value.size or value.dtype.kind not in "fiu":
        return {}
    return {"min": float(value.min()), "max": float(value.max()), "mean": float(value.mean())}


def _type(spec: TensorSpec) -> str:
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _describe(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": [str(size) for size in spec.shape]}
