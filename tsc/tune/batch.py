"""Configs of a group built into one binary, and what measuring them gives: on the machine that built them or on another.

To be measured a Batch needs nothing of the compiler, NumPy and filelock alone. As a file it is code that runs and a pickle: it
must come from whom you trust, as a Package must.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from tsc.codegen_c.specs import machine_name
from tsc.errors import InputError, LaunchError
from tsc.poly.tile import TileConfig
from tsc.runtime.drivers.cpu import read_cpu_flags
from tsc.runtime.files import read_regular, write_atomically
from tsc.tune.child import measured
from tsc.tune.measure import ENOUGH, Sizes, Trial
from tsc.tune.records import Place, Record, append, place_of, read
from tsc.tune.search import Times

SUFFIX = ".tscbatch"
_MAGIC = b"tsc batch 1\n"


@dataclass(frozen=True, slots=True)
class Batch:
    """`configs` of a `group` as Variants of a Trial, whose `cpu_flags` a machine must have; the `sizes` at which they are
    measured, of which the first is one where their values are looked at; and why other configs are `refused`. The `anchor` is
    a Variant of every Batch of the group: machines are not equally fast at all times, so that times are told by it."""

    group: str
    trial: Trial
    anchor: TileConfig
    configs: tuple[TileConfig, ...]
    sizes: tuple[Sizes, ...]
    refused: Mapping[TileConfig, str]
    cpu_flags: tuple[str, ...] = ()


def measured_records(batch: Batch, known: Mapping[TileConfig, Times], units: int = 1, enough: float = ENOUGH) -> list[Record]:
    """The records of a Batch on so many cores of this machine, where no other is measured meanwhile, `enough` as `Bench.times`
    has it: times as they would have been when the anchor took what is `known` of it; where nothing is, its own are recorded,
    too. Raises LaunchError."""
    target, machine, kernel = batch.trial.target, machine_name(), batch.trial.kernel
    lacking = sorted({*batch.cpu_flags} - read_cpu_flags())
    if lacking:
        raise LaunchError(f"this machine lacks {', '.join(lacking)}, which code for '{target}' needs; measure on another")
    anchored, place = known.get(batch.anchor), kernel.configs.index(batch.anchor) if batch.anchor in kernel.configs else None
    wanted = {*batch.configs} if anchored is not None else {*batch.configs, batch.anchor}
    without = frozenset(k for k, config in enumerate(kernel.configs) if config not in wanted and config != batch.anchor)
    with _alone():
        found = measured(batch.trial, batch.sizes[:1], batch.sizes, units=units, enough=enough, without=without)
    records = [Record(batch.group, target, machine, config, {}, reason=reason) for config, reason in batch.refused.items()]
    scales = [1e9] * len(batch.sizes)
    if anchored is not None and place is not None and place not in found.wrong:
        scales = [math.exp(time) / found.seconds[place, number] for number, time in enumerate(anchored)]
    for variant, (config, own, does) in enumerate(kernel.made()):
        if config not in wanted:
            continue
        if variant in found.wrong:
            records.append(Record(batch.group, target, machine, config, {}, reason=found.wrong[variant]))
            continue
        for number, sizes in enumerate(batch.sizes):
            work = {work.kind: work.count.evaluate(sizes) for work in does}
            blocks, nanoseconds = own.calls[0].blocks.evaluate(sizes), round(found.seconds[variant, number] * scales[number])
            records.append(Record(batch.group, target, machine, config, sizes, units, blocks, work, max(1, nanoseconds)))
    return records


def times_of(records: Sequence[Record], sizes: Sequence[Sizes]) -> dict[TileConfig, Times]:
    """What records of one group and machine have of configs at all of these sizes, but for final ones: a search that goes on is
    told what it was told before."""
    keys = [place_of(s) for s in sizes]
    times: dict[TileConfig, dict[Place, float]] = {}
    refused: dict[TileConfig, Times] = {}
    for record in records:
        if record.nanoseconds is None:
            refused[record.config] = None
        elif not record.final and record.units == 1:
            own, key = times.setdefault(record.config, {}), place_of(record.sizes)
            own[key] = min(own.get(key, math.inf), math.log(record.nanoseconds))
    return refused | {config: [own[key] for key in keys] for config, own in times.items() if own.keys() >= {*keys}}


@contextmanager
def _alone() -> Iterator[None]:
    """Held while something is measured: jobs and workers on one machine take turns, and build meanwhile."""
    path = Path(tempfile.gettempdir()) / f"tsc-measuring-{os.getuid()}.lock"
    lock = FileLock(path)
    try:
        lock.acquire()
    except OSError as error:
        raise LaunchError(f"cannot lock '{path}' ({error.strerror}), by which jobs measure in turns; remove the file, or set "
                          "TMPDIR to a folder that can be written") from error
    try:
        yield
    finally:
        lock.release()


# -- as files ----------------------------------------------------------------------------------------------------------

def write_batch(folder: Path, batch: Batch) -> Path:
    """A file in a folder, named by what is in it. Raises LaunchError where it cannot be written."""
    body = pickle.dumps(batch)
    digest = hashlib.sha256(body).hexdigest()
    path = folder / f"{batch.trial.kernel.symbol}-{digest[:12]}{SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [_MAGIC, digest.encode(), b"\n", body])
    except OSError as error:
        raise LaunchError(f"cannot write '{path}' ({error.strerror}); give another folder, or free some space") from error
    return path


def read_batch(path: Path) -> Batch:
    """What `write_batch` wrote. Raises InputError for anything else."""
    try:
        content = read_regular(path)
    except OSError as error:
        raise InputError(f"cannot read the batch '{path}' ({error.strerror}); build it again") from error
    digest, _, body = content.removeprefix(_MAGIC).partition(b"\n")
    if not content.startswith(_MAGIC) or hashlib.sha256(body).hexdigest().encode() != digest:
        raise InputError(f"'{path}' is no batch, or was damaged; build it again with this version of tsc")
    try:
        found = pickle.loads(body)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise InputError(f"'{path}' was built by another version of tsc ({error}); build it again") from error
    if not isinstance(found, Batch):
        raise InputError(f"'{path}' is no batch; build it again")
    return found


def measure_folder(folder: Path, records: Path, tell: Callable[[str], None] = lambda line: None) -> int:
    """Measure all batches of a folder into a file of records, but for what it has from this machine; how many configs are new.
    Batches stay where they are. Raises InputError for a file that is none, and LaunchError where the machine cannot do it; what
    was measured before that is kept."""
    paths, new = sorted(folder.glob(f"*{SUFFIX}")), 0
    if not paths:
        raise InputError(f"there is no batch (*{SUFFIX}) in '{folder}'; build some with `tsc tune --build`")
    for number, path in enumerate(paths, 1):
        batch = read_batch(path)
        own = [r for r in (read(records) if records.exists() else ())
               if (r.group, r.target, r.machine) == (batch.group, batch.trial.target, machine_name())]
        known = times_of(own, batch.sizes)
        if known.keys() >= {*batch.configs, *batch.refused}:
            tell(f"{number} of {len(paths)}: {path.name} is known")
            continue
        found = measured_records(batch, known)
        append(records, found)
        new += len({r.config for r in found} - known.keys())
        tell(f"{number} of {len(paths)}: {path.name}, {len(batch.configs)} configs at {len(batch.sizes)} sizes")
    return new
