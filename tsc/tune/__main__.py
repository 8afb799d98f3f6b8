"""`python -m tsc.tune FOLDER RECORDS`: measure what `tsc tune --build FOLDER` built. It takes NumPy and filelock alone."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path
from typing import TextIO

from tsc.errors import TscError


def _say(stream: TextIO, line: str) -> None:
    stream.write(f"{line}\n")
    stream.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tsc.tune", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the batches are")
    parser.add_argument("records", type=Path, help="where measurements are added; what is there is not measured again")
    asked = parser.parse_args()
    try:
        measure_folder = import_module("tsc.tune.batch").measure_folder
    except ModuleNotFoundError as error:
        _say(sys.stderr, f"LaunchError: measuring needs the package '{error.name}', which is not installed; pip install it")
        return 1
    try:
        new = measure_folder(asked.folder, asked.records, lambda line: _say(sys.stderr, line))
    except TscError as error:
        _say(sys.stderr, f"{type(error).__name__}: {error}")
        return 1
    _say(sys.stdout, f"{new} configs were measured; the records are in {asked.records}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
