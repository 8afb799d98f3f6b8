"""Every defect that outside testers found has a test that fails if it comes back, or stands here with a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent
#: The numbers of the review of 2026-11-22: wrong results, crashes, bounds and proofs, speed, seeing and using.
NUMBERS = {*range(1, 24), *range(30, 36), 40, 41, 42}
OPEN = {
    35: "register tiles and prefetch on Intel are choices of spaces now, which nobody has measured there",
}


def marked(tree: ast.AST) -> Iterator[int]:
    """The numbers in `pytest.mark.defect(..)`."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="defect", value=ast.Attribute(attr="mark")), args=args):
                yield from (a.value for a in args if isinstance(a, ast.Constant) and isinstance(a.value, int))


def test_every_defect_has_a_test_or_a_reason() -> None:
    found = {n for path in TESTS.rglob("test_*.py") for n in marked(ast.parse(path.read_text(encoding="utf-8")))}
    assert found <= NUMBERS, f"no such defects: {sorted(found - NUMBERS)}"
    assert found.isdisjoint(OPEN), f"no longer open: {sorted(found & set(OPEN))}"
    assert found | set(OPEN) == NUMBERS, f"without a test: {sorted(NUMBERS - found - set(OPEN))}"
