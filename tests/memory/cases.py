"""What runs in the memory tests: operator samples and shared models, compiled for a target by a compiler, with feeds of many
sizes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx

import tsc
from tests.emulated import avx512
from tests.models import test_shared_models as shared
from tests.ops import test_compiled_samples as compiled
from tests.ops import test_samples as operators
from tsc.codegen_c.specs import CPU_SPECS
from tsc.runtime.drivers.cpu import read_cpu_flags
from tsc.runtime.executable import Executable

Feeds = Mapping[str, np.ndarray[Any, Any]]
TARGETS = tuple(CPU_SPECS)
COMPILERS = ("gcc", "zig", "clang")
#: Sizes that a dim takes besides its own: few elements, and a vector or a tile with one more or less.
SIZES = (1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 31, 33, 63, 64, 65)
MOST = 200_000  # elements of an input
#: Operators whose kernels take seconds to compile.
HEAVY = frozenset(["Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "MatMul", "Gemm", "Einsum", "MaxPool", "AveragePool"])


@dataclass(frozen=True, slots=True)
class Case:
    """A model and how to compile it; `shapes` are of its inputs, by Dim's name or size; `feeds` what is known to be right."""

    name: str
    source: onnx.ModelProto | Path
    dims: Mapping[str, Any] | None
    shapes: Mapping[str, tuple[str | int, ...]]
    feeds: tuple[Feeds, ...]

    def compile(self, target: str, compiler: str) -> Executable:
        with compiled_by(compiler):
            return tsc.compile(self.source, dims=self.dims, target=target, threads=1)

    def resized(self, rng: Random, count: int) -> Iterator[Feeds]:
        """The first feeds with other sizes for the Dims: values over and over. They need not be valid."""
        names = sorted({size for shape in self.shapes.values() for size in shape if isinstance(size, str)})
        for _ in range(count if names else 0):
            sizes = {name: rng.choice(SIZES) for name in names}
            made = {n: tuple(sizes.get(s, s) if isinstance(s, str) else s for s in shape) for n, shape in self.shapes.items()}
            if all(np.prod(shape, dtype=np.int64) <= MOST for shape in made.values()):
                yield {n: np.resize(self.feeds[0][n], shape) for n, shape in made.items()}


@cache
def samples() -> dict[str, Case]:
    """Every operator sample with symbolic dims, by name."""
    found = {}
    for parameter in (*compiled.CASES, *(case for case in operators.CASES if case.values[0].domain)):
        op, sample = parameter.values
        model, dims, shapes, feeds = compiled.sample_model(op, sample)
        found[str(parameter.id)] = Case(str(parameter.id), model, dims, {n: tuple(shapes[n]) for n in feeds}, (feeds,))
    return found


def light() -> list[str]:
    """The names of the samples that compile in no time."""
    return sorted(name for name in samples() if name.split("-")[0] not in HEAVY)


#: The shared models that compile, by name; none where their folder is absent.
MODELS = tuple(sorted(shared.ENTRIES))


def model(name: str) -> Case:
    """A shared model with feeds for its first listed shapes and random ones."""
    entry = shared.ENTRIES[name]
    shapes = entry["shapes"][:2] + shared.RECIPES.random_shapes(entry, 2, seed=3)
    feeds = tuple(shared.RECIPES.feeds(entry, shape, seed) for seed, shape in enumerate(shapes))
    return Case(name, shared.FOLDER / entry["file"], shared.DIMS.get(name), {}, feeds)


# -- machines and compilers --------------------------------------------------------------------------------------

def command(compiler: str) -> str | None:
    """How to call a compiler, whose name may have options behind it; None where it is absent."""
    if compiler == "zig":
        found = f"{sys.executable} -m ziglang cc" if importlib.util.find_spec("ziglang") else None
    else:
        found = compiler if shutil.which(compiler.split()[0]) else None
    return avx512.command(found) if found is not None and avx512.active() else found


def lacking(target: str, compiler: str) -> str:
    """Why nothing can be compiled and run for a target by a compiler here; "" where it can."""
    flags = sorted(set(CPU_SPECS[target].cpu_flags) - read_cpu_flags())
    if flags:
        return f"this machine lacks {', '.join(flags)}"
    return "" if command(compiler) else f"there is no {compiler}"


@contextmanager
def compiled_by(compiler: str) -> Iterator[None]:
    """With TSC_CC naming that compiler."""
    old, asked = os.environ.get("TSC_CC"), command(compiler)
    assert asked is not None, compiler
    os.environ["TSC_CC"] = asked
    try:
        yield
    finally:
        if old is None:
            del os.environ["TSC_CC"]
        else:
            os.environ["TSC_CC"] = old
