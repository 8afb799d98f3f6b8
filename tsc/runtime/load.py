"""`tsc.load`: a Package file -> Executable. Needs NumPy and nothing else: no compiler, no islpy, no onnx."""

from __future__ import annotations

from pathlib import Path

from tsc.runtime.executable import Executable
from tsc.runtime.package import Package, Weights


def load(path: str | Path, threads: int | None = None, weights: Weights = "private") -> Executable:
    """Load what `Executable.save` wrote.

    `threads` is how many cores one run may use (None: all). `weights="private"` keeps them on 2 MB pages of this process,
    which is fastest; `"shared"` maps the file, one copy for all processes. Raises PackageError when the file is truncated,
    altered, of an unknown version, or built for another target.
    """
    return Executable(Package.read(path, weights), threads)
