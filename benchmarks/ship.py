"""The records that ship with tsc, made from what `tsc tune` has measured on this class of machines.

    python3 -m benchmarks.ship records.jsonl [more.jsonl ..] [--variants N] [--generic]

Of each kernel those of the configs that make its pool are kept, where these are worth it, in `tsc/tune/shipped/`: a file for
each class of machines and target that the records have; with `--generic` one for all others, of what may be worth as much on
them. Files of other classes stay as they are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tsc.codegen_c.specs import machine_class
from tsc.runtime.files import write_atomically
from tsc.tune.records import Record, read, to_line
from tsc.tune.shipped import GENERIC, kept, of_blocks, path_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--variants", type=int, default=3)
    parser.add_argument("--generic", action="store_true")
    asked = parser.parse_args()
    classes: dict[tuple[str, str], list[Record]] = {}
    for path in asked.records:
        for record in read(path):
            if name := GENERIC if asked.generic else machine_class(record.machine):
                classes.setdefault((name, record.target), []).append(record)
    for (name, target), records in sorted(classes.items()):
        ships = kept(of_blocks(records) if asked.generic else records, asked.variants)
        path = path_of(name, target)
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, ["".join(f"{to_line(record)}\n" for record in ships).encode()])
        groups = {record.group for record in ships}
        print(f"{path}: {len(ships)} records of {len(groups)} kernels, of {len({r.group for r in records})} that were measured")


if __name__ == "__main__":
    main()
