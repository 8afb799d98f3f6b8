"""`python -m tsc`."""

import importlib
import sys

try:
    cli = importlib.import_module("tsc.cli")
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] == "tsc":
        raise
    sys.stderr.write(f"LaunchError: python -m tsc needs the package '{error.name}', which is not installed; 'pip install "
                     "tsc-compiler' installs all it needs\n")
    raise SystemExit(4) from None

cli.main()
