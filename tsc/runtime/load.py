"""`tsc.load`: a Package file -> Executable. Needs NumPy and nothing else: no compiler, no islpy, no onnx."""

from __future__ import annotations

from pathlib import Path

from tsc.runtime.executable import Executable
from tsc.runtime.package import Package, Weights
from tsc.runtime.signing import Trust


def load(path: str | Path, threads: int | None = None, weights: Weights = "private", trust: Trust | None = None) -> Executable:
    """Load what `Executable.save` wrote.

    A Package is native code and runs with your rights: load only what comes from whom you trust. Its hashes find damage, not
    malice. On a machine that only runs Packages, NumPy and `pip install --no-deps tsc-compiler` are all that is needed.

    Args:
        path: The Package's file.
        threads: How many cores one run may use (None: all that the process may use).
        weights: "private" keeps them on 2 MB pages of this process, which is fastest; "shared" maps the file, one copy for all
            processes. Replace a file that is mapped by renaming another one over it: a run finds that it was changed in place
            and raises PackageError, unless that happens while the run reads it, where the system ends a process that reads
            what was cut off (SIGBUS).
        trust: Files of public keys, or folders of them, by one of which it has to be signed (`tsc pack sign`). None: what
            TSC_TRUST names, if anything.

    Returns:
        The model, ready to run.

    Raises:
        PackageError: The file is truncated, altered, malformed, of an unknown version, built for another target, or not signed
            by who is trusted; no code of it has run then.
        LaunchError: Its code does not load here, or memory is short.
    """
    return Executable(Package.read(path, weights, trust), threads)
