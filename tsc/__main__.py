"""`python -m tsc`."""

import sys

try:
    from tsc.cli import main
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] == "tsc":
        raise
    sys.stderr.write(f"LaunchError: python -m tsc needs the package '{error.name}', which is not installed; 'pip install "
                     "tsc-compiler' installs all it needs\n")
    raise SystemExit(4) from None

main()
