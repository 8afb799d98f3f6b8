"""Options, and the only place that reads the environment (six variables at most)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from tsc.errors import InputError

#: In which numbers are multiplied.
Precision = Literal["fp32", "tf32", "fp16", "bf16"]
#: Whether all Variants of a kernel sum in one order.
Reduction = Literal["fixed", "fast"]


def default_threads() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model may ask of the compiler: beyond it import raises UnsupportedError, so that no small file can take all memory
    or time. Real models stay far below.

    Attributes:
        nodes: With all functions in place of their calls.
        nesting: Of subgraphs, and of functions that call functions.
        rank: Of any value.
        elements: Of any value, its dims at their least sizes.
        folding: Elements computed while compiling, all nodes over constants together; the rest is left to runs.
    """

    nodes: int = 200_000
    nesting: int = 64
    rank: int = 16
    elements: int = 1 << 33
    folding: int = 1 << 29


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile. Raises InputError for a value of another kind.

    Attributes:
        cache_dir: The folder of the build cache (None: the user's own; TSC_CACHE).
        jobs: How many compiler processes run at once (0: as many as there are cores).
        use_cache: Whether binaries are taken from the cache, and kept there.
        progress: Is told (what, done, of how many) as the work goes on.
        limits: What the model may ask for.
        share_kernels: Layers equal up to constant sizes get one kernel for all (off: kernels of their own, which take longer to
            compile).
        reduction_chunk: Cuts longer reductions into chunks of so many elements, which are folded afterwards (0: none is cut):
            sums are rounded otherwise then.
        split_reductions: The chunks are launched apart, so that several cores share one row, or one tile of a product.
        records: A file of measurements (see `tsc-tune`): each kernel that it knows gets up to `variants` Variants, of which a
            run takes the one that is expected to be fastest at its sizes.
        shipped: Kernels that the records do not know have the measurements that ship with tsc, where these are of this class
            of machines.
        variants: How many Variants of a kernel there are at most. A GPU's products have so many without any records.
        precision: That of the factors of products, where a device has matrix instructions for it: "fp32"; on GPUs "tf32",
            which keeps 10 of 23 bits behind the point, or "fp16", which keeps as many, is stored so, and ends at 65,504
            (constants beyond that become it, other values infinite); "bf16", 7 bits, on CPUs with AVX-512 BF16 alone and for
            products with constant weights. Sums are in fp32, and so is all else.
        reduction: "fixed": all Variants of a kernel give the same bits; or "fast": records may give it some that sum in another
            order, in chunks that several cores take (split rows, split k), so that results differ by rounding from size to
            size and by the number of threads.
    """

    cache_dir: Path | None = None
    jobs: int = 0  # 0: as many as there are cores
    use_cache: bool = True
    progress: Callable[[str, int, int], None] | None = None
    limits: Limits = DEFAULT_LIMITS
    share_kernels: bool = True
    reduction_chunk: int = 0
    split_reductions: bool = False
    records: Path | None = None
    shipped: bool = True
    variants: int = 4
    precision: Precision = "fp32"
    reduction: Reduction = "fixed"

    def __post_init__(self) -> None:
        for name, without in (("cache_dir", "the user's own cache"), ("records", "none")):
            if isinstance(given := getattr(self, name), str):
                if not given:
                    raise InputError(f"Options: {name} is empty, expected a path; leave it out for {without}")
                object.__setattr__(self, name, Path(given))
        for name, kind, expected in (
                ("cache_dir", Path | None, "a path"), ("jobs", int, "a whole number"), ("use_cache", bool, "True or False"),
                ("limits", Limits, "tsc.Limits"), ("share_kernels", bool, "True or False"),
                ("reduction_chunk", int, "a whole number"), ("split_reductions", bool, "True or False"),
                ("records", Path | None, "a path"), ("shipped", bool, "True or False"), ("variants", int, "a whole number")):
            if not isinstance(getattr(self, name), kind):
                raise InputError(f"Options: {name} is a {type(getattr(self, name)).__name__}, expected {expected}")
        if self.reduction_chunk < 0 or (self.split_reductions and not self.reduction_chunk):
            raise InputError(f"Options: reduction_chunk is {self.reduction_chunk}, expected at least 0 (1 to split reductions)")
        for name, values in (("precision", get_args(Precision)), ("reduction", get_args(Reduction))):
            if getattr(self, name) not in values:
                raise InputError(f"Options: {name} is {getattr(self, name)!r}, expected one of {', '.join(values)}")
        if self.variants < 1:
            raise InputError(f"Options: variants is {self.variants}, expected at least 1")
        if self.progress is not None and not callable(self.progress):
            raise InputError(f"Options: progress is a {type(self.progress).__name__}, expected a function")

    def job_count(self) -> int:
        """`jobs`, or as many as this process may use cores."""
        return self.jobs or default_threads()

    def tell(self, what: str, done: int, total: int) -> None:
        """Report progress to whoever wants it, and to the log called "tsc"."""
        logging.getLogger("tsc").info("%s, %d of %d", what, done, total)
        if self.progress is not None:
            self.progress(what, done, total)


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says. TSC_DUMP and TSC_OVERRIDE name folders; TSC_CC a compiler command; TSC_TRUST a public key, or
    a folder of such: a Package that nobody of these has signed is not read."""

    dump: Path | None
    override: Path | None
    cache: Path | None
    compiler: str | None
    trust: Path | None = None


def read_environment() -> Environment:
    """Read the variables that `tsc` knows: TSC_DUMP, TSC_OVERRIDE, TSC_CACHE, TSC_CC, TSC_TRUST."""
    def path(name: str) -> Path | None:
        value = os.environ.get(name)
        return Path(value) if value else None

    return Environment(path("TSC_DUMP"), path("TSC_OVERRIDE"), path("TSC_CACHE"), os.environ.get("TSC_CC") or None,
                       path("TSC_TRUST"))


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process: this one's, with `extra` on top."""
    return {**os.environ, **extra}
