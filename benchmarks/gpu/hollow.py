"""Packages whose large constants stay behind: what random weights were made from is made again where they are needed.

A constant's name says what it is of: "a|b" are arrays side by side, "a/float16" is one rounded.
"""

from __future__ import annotations

import gzip
import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsc.runtime.package import Package

Arrays = Mapping[str, NDArray[Any]]
_LARGE = 1 << 20


def write_hollow(path: Path, package: Package) -> dict[str, str]:
    """Write a Package with zeros for each of its large constants; returns their sha256."""
    large = {name: array for name, array in package.constants.items() if array.nbytes > _LARGE}
    hollow = replace(package, constants={**package.constants, **{name: np.zeros_like(a) for name, a in large.items()}})
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.tscpack"
        hollow.write(whole)
        path.write_bytes(gzip.compress(whole.read_bytes(), 6, mtime=0))
    return {name: _digest(array) for name, array in large.items()}


def read_hollow(path: Path, digests: Mapping[str, str], weights: Arrays) -> Package:
    """What `write_hollow` left, with constants made of a model's weights by name. Raises ValueError where one is not as it
    was."""
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.tscpack"
        whole.write_bytes(gzip.decompress(path.read_bytes()))
        package = Package.read(whole)
    made = {name: _made(name, weights) for name in digests}
    wrong = [name for name, array in made.items() if _digest(array) != digests[name]]
    if wrong:
        raise ValueError(f"constants of '{path.name}' are not what they were where it was built: {', '.join(wrong)}")
    return replace(package, constants={**package.constants, **made})


def _made(name: str, weights: Arrays) -> NDArray[Any]:
    whole, _, dtype = name.partition("/")
    joined = np.concatenate([weights[one] for one in whole.split("|")], -1)
    return np.ascontiguousarray(joined.astype(dtype or joined.dtype))


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
