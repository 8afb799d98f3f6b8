"""The least time that a model can take: what one core of this machine can do at most, and what a model asks for at least.

Williams et al. 2009, "Roofline: An Insightful Visual Performance Model for Multicore Architectures".
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsc.codegen_c.build import find_compiler
from tsc.codegen_c.specs import host_spec
from tsc.config import read_environment
from tsc.errors import LaunchError
from tsc.graph.fusion.to_te import LoweredGroup
from tsc.graph.onnx.file import Source
from tsc.kernels import Workshop
from tsc.pipeline import front, lower_groups
from tsc.runtime.plan import numpy_dtype
from tsc.sym import SymExpr
from tsc.sym.expr import product
from tsc.te.compute import Compute
from tsc.te.expr import Call, Cast, Expr, loads

SOURCE = Path(__file__).parent / "codegen_c" / "peaks.c"
_CALL = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
library.peak_gflops.restype = library.peak_gbytes.restype = ctypes.c_double
print(json.dumps({"gflops": library.peak_gflops(), "gbytes": library.peak_gbytes()}))
"""


# -- the machine -------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Peaks:
    """Of one core: fp32 GFLOP/s by its widest FMA, and GB/s at which it reads what no cache holds."""

    gflops: float
    gbytes: float

    def milliseconds(self, flops: float, size: float) -> float:
        """The least time that so many operations and bytes can take."""
        return 1000 * max(flops / (self.gflops * 1e9), size / (self.gbytes * 1e9))

    def __str__(self) -> str:
        return f"{self.gflops:.1f} GFLOP/s, {self.gbytes:.1f} GB/s"


def peaks() -> Peaks:
    """Measured in a process of its own, which takes about two seconds. Raises LaunchError where that cannot be compiled."""
    compiler = find_compiler(read_environment().compiler)
    with tempfile.TemporaryDirectory(prefix="tsc-peaks-") as folder:
        library = Path(folder) / "peaks.so"
        flags = ("-O3", "-march=native", "-ffp-contract=fast", f"-DVECTOR_BYTES={host_spec().vector_bytes or 16}")
        try:
            subprocess.run([*compiler.command, *flags, "-shared", "-fPIC", str(SOURCE), "-o", str(library)], check=True,
                           capture_output=True)
            done = subprocess.run([sys.executable, "-c", _CALL, str(library)], check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise LaunchError(f"what this machine can do at most cannot be measured ({error})") from error
    return Peaks(**json.loads(done.stdout))


# -- a model -----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Work:
    """What a model asks for at any sizes of its dims, at least: `flops` of products and sums over axes alone, and `bytes` of
    the weights that these read, of inputs and outputs, each once."""

    flops: SymExpr
    bytes: SymExpr

    def least(self, sizes: Mapping[str, int], machine: Peaks) -> float:
        """Milliseconds of one core, as far as sizes that only a run tells are not in it."""
        known = [expr.evaluate(sizes) if expr.dims() <= sizes.keys() else 0 for expr in (self.flops, self.bytes)]
        return machine.milliseconds(*known)


def work_of(source: Source, dims: Mapping[str, Any] | None, shop: Workshop) -> Work:
    """The work of a model; what only the run chooses or repeats is left out. Raises as compiling it does."""
    graph, env, groups = front(source, dims, shop.recorder, shop.device, (), shop.options.limits)
    lowered = lower_groups(groups, graph, env, shop)
    size = SymExpr.of(sum(graph.constants[name].nbytes for name in weights_of(lowered.values()) & graph.constants.keys()))
    for name in dict.fromkeys((*graph.inputs, *graph.outputs)):
        size = size + product(graph.types[name].shape) * numpy_dtype(graph.types[name].dtype).itemsize
    return Work(flops_of(lowered.values()), size)


def weights_of(groups: Iterable[LoweredGroup]) -> set[str]:
    """The values that sums read whole: of a table that is looked up nobody knows how much is."""
    return {group.values[load.buffer.name] for group in groups for compute in group.program.computes if compute.reduce_axes
            for load in loads(compute.body) if load.buffer.name in group.values and not any(map(_is_data, load.index))}


def _is_data(index: Expr) -> bool:
    return any(loads(index))


def flops_of(groups: Iterable[LoweredGroup]) -> SymExpr:
    """Two for each term of a sum of products, one for each term of another sum or extremum."""
    found = SymExpr.of(0)
    for group in groups:
        for compute in group.program.computes:
            if compute.reduce_axes:
                terms = product(axis.extent for axis in (*compute.axes, *compute.reduce_axes))
                found = found + terms.substitute(group.sizes) * (2 if _multiplies(compute) else 1)
    return found


def _multiplies(compute: Compute) -> bool:
    """Whether what is summed up are products."""
    body = compute.body.value if isinstance(compute.body, Cast) else compute.body
    return isinstance(body, Call) and body.fn == "mul"
