"""The table of bounds beside measurements (benchmarks/gpu/sol.py)."""

from __future__ import annotations

from benchmarks.gpu.sol import Compared, table


def test_table() -> None:
    """Ratios of 0.5, 0.8 and 1.1: two within a quarter, one above; of the two at one size the faster has 0.8."""
    found = [Compared("a", (1, 2, 3), "fp32", 5.0, 10.0, "issue", 0.05),
             Compared("b", (1, 2, 3), "fp32", 6.4, 8.0, "shared", 0.5),
             Compared("a", (9, 2, 3), "fp16", 11.0, 10.0, "l2", 3.5)]
    lines = {line[:34].strip(): line[34:].split() for line in table(found)}
    assert lines["all"] == ["3", "0.56", "0.80", "1.04", "1.10", "66.7%", "1"]
    assert lines["fp32"][0] == "2" and lines["fp16"][-1] == "1" and "tf32" not in lines
    assert lines["the fastest config of each size"][:2] == ["2", "0.83"]
    assert lines["less than a tenth of a wave"][0] == lines["three waves and more"][0] == "1"
