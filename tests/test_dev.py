"""dev.py stands on the standard library alone, and its exit codes pass through."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_standard_library_only() -> None:
    tree = ast.parse((ROOT / "dev.py").read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_help_and_usage() -> None:
    shown = subprocess.run([sys.executable, "dev.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert all(f"dev.py {command}" in shown for command in ("demo", "test", "check", "bench", "fuzz", "docs"))
    assert subprocess.run([sys.executable, "dev.py", "fly"], cwd=ROOT, capture_output=True, check=False).returncode == 2


def test_ci_runs_the_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text(encoding="utf-8").splitlines()[-1] == 'exec python3 dev.py test "$@"'
