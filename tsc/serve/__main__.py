"""`python -m tsc.serve FOLDER`: for machines that serve alone, with NumPy, click and what the extra `serve` has.

Exit codes: 0 done, 2 wrong usage, 3 what is wrong with a request or Package, 4 the machine could not do it.
"""

from __future__ import annotations

import sys

import click

from tsc.errors import LaunchError, TscError
from tsc.serve.command import serve_command


def main() -> None:
    """Serve, and end with one sentence where that cannot be."""
    try:
        serve_command(prog_name="python -m tsc.serve")
    except TscError as error:
        click.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(4 if isinstance(error, LaunchError) else 3)


if __name__ == "__main__":
    main()
