"""`tsc doctor`: what there is on this machine; and of a model whether it compiles, and what is found about its sizes, without
compiling it."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tsc import __version__
from tsc.codegen_c.build import find_compiler
from tsc.codegen_c.cache import default_cache_dir
from tsc.codegen_c.specs import host_spec
from tsc.codegen_cuda.nvrtc import identity
from tsc.config import read_environment
from tsc.errors import LaunchError, TscError
from tsc.graph.onnx.file import Source
from tsc.graph.onnx.importer import import_onnx
from tsc.ir import Graph
from tsc.kernels import Workshop
from tsc.pipeline import front
from tsc.runtime.drivers.cpu import read_cpu_flags
from tsc.runtime.drivers.platform import open_platform
from tsc.sym import ShapeEnv

_T = TypeVar("_T")


# -- the machine -------------------------------------------------------------------------------------------------------

def machine_facts() -> tuple[dict[str, Any], list[str]]:
    """What compiling and running find here, as facts and as lines; the `problem` is why it could not compile, or ""."""
    environment = read_environment()
    folder = environment.cache or default_cache_dir()
    files = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    try:
        compiler, problem = find_compiler(environment.compiler), ""
        command, version = " ".join(compiler.command), next(iter(compiler.identity.splitlines()), "")
    except LaunchError as error:
        command, version, problem = "", "", str(error)
    (cuda, no_cuda), (gpus, no_gpus) = _found(lambda: [identity()]), _found(lambda: open_platform("cuda").devices())
    facts: dict[str, Any] = {
        "tsc": __version__, "python": platform.python_version(), "platform": platform.platform(),
        "target": host_spec().name, "cpu_flags": sorted(read_cpu_flags()),
        "compiler": command, "compiler_version": version,
        "cuda_compiler": next(iter(cuda), ""), "cuda_compiler_problem": no_cuda, "gpus_problem": no_gpus,
        "gpus": [{"name": gpu.name, "arch": gpu.arch, "memory_bytes": gpu.total_memory} for gpu in gpus],
        **{name: _version(name) for name in ("islpy", "onnx", "numpy")},
        "cache": str(folder), "cache_files": len(files), "cache_bytes": sum(files), "problem": problem,
    }
    named = ", ".join(f"{gpu.name} ({gpu.arch}, {gpu.total_memory / 1e9:.0f} GB)" for gpu in gpus)
    vector = [flag for flag in facts["cpu_flags"] if flag.startswith(("avx", "fma", "amx", "sse4"))]
    return facts, [
        *(f"{key:17} {facts[key]}" for key in ("tsc", "python", "platform", "target")),
        f"{'cpu flags':17} {' '.join(vector)}",
        f"{'compiler':17} {facts['compiler'] or 'none'}" + (f" ({version})" if version else ""),
        f"{'cuda compiler':17} {facts['cuda_compiler'] or f'none ({no_cuda})'}",
        f"{'gpus':17} {named or f'none ({no_gpus})'}",
        *(f"{key:17} {facts[key]}" for key in ("islpy", "onnx", "numpy")),
        f"{'cache':17} {folder} ({len(files)} files, {sum(files) / 1e6:.1f} MB)",
        *([problem] if problem else [])]


def _found(look: Callable[[], Sequence[_T]]) -> tuple[Sequence[_T], str]:
    """What there is, or nothing and why."""
    try:
        return look(), ""
    except TscError as error:
        return (), str(error)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


# -- a model -----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a model is: its `opset`, how often it has each of its `operators`, bytes of constants, inputs and outputs as text,
    the range of each dim, which dims came out as others (`same`), what sizes must be for it to run (`needs`), each with the
    reason, and how many kernels' worth of groups fusion proposes."""

    opset: int
    operators: Mapping[str, int]
    constant_bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dims: Mapping[str, str]
    same: tuple[str, ...]
    needs: tuple[str, ...]
    groups: int

    def facts(self) -> dict[str, Any]:
        """All of it, JSON-ready."""
        return {"opset": self.opset, "operators": dict(self.operators), "constant_bytes": self.constant_bytes,
                "inputs": list(self.inputs), "outputs": list(self.outputs), "dims": dict(self.dims), "same": list(self.same),
                "needs": list(self.needs), "groups": self.groups}

    def lines(self) -> list[str]:
        """All of it, to be read."""
        said = [("opset", str(self.opset)), ("constants", f"{self.constant_bytes / 1e6:.1f} MB"),
                ("operators", ", ".join(f"{count} {name}" for name, count in self.operators.items())),
                *(("input", text) for text in self.inputs), *(("output", text) for text in self.outputs),
                *(("dim", f"{name}: {known}") for name, known in self.dims.items()),
                *(("same", text) for text in self.same), *(("needs", text) for text in self.needs),
                ("groups", f"{self.groups}; it compiles, as far as can be told without compiling it")]
        return [f"{name:10} {text}" for name, text in said]


def diagnose(source: Source, dims: Mapping[str, Any] | None, shop: Workshop) -> Diagnosis:
    """All that is known of a model before its kernels are made. Raises as `compile` where it cannot be compiled, with all that
    is unsupported at once."""
    imported, _ = import_onnx(source, dims, (), shop.options.limits)
    graph, env, groups = front(source, dims, shop.recorder, shop.device, (), shop.options.limits)
    operators = Counter(node.op for node in imported.nodes)
    ranges = {name: str(known) for name, known in env.ranges.items() if name not in env.equal}
    return Diagnosis(
        imported.opset, dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        sum(array.nbytes for array in graph.constants.values()), _typed(graph, graph.inputs), _typed(graph, graph.outputs),
        ranges, _same(env), tuple(f"{guard} ({guard.reason})" for guard in env.remaining_guards()), len(groups))


def _typed(graph: Graph, names: tuple[str, ...]) -> tuple[str, ...]:
    counts = set(graph.counts.values())
    return tuple(f"{name}: {graph.outside.get(name, graph.types[name].dtype)}[{', '.join(map(str, graph.types[name].shape))}]"
                 for name in names if name not in counts)


def _same(env: ShapeEnv) -> tuple[str, ...]:
    """Which dims are others, and why: the first Guard that names them."""
    def reason(name: str) -> str:
        return next((f" ({g.reason})" for g in env.guards if name in g.left.dims() | g.right.dims()), "")

    return tuple(f"{name} is {env.canon(value)}{reason(name)}" for name, value in sorted(env.equal.items()))
