"""What all commands share: how they take a file, and how they answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
as_json = click.option("--json", "json_", is_flag=True, help="Print the result as one JSON object.")


def answer(json_: bool, facts: dict[str, Any], lines: Sequence[str]) -> None:
    """Print facts as JSON, or lines to be read."""
    click.echo(json.dumps(facts) if json_ else "\n".join(lines))
