"""Progress is shown where somebody looks, cleared at the end, and logged; the shell's `tsc` is left to others."""

from __future__ import annotations

import io
import logging
import tomllib
from pathlib import Path

import pytest

import tsc
from tests.test_tiny import tiny_model
from tsc import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.defect(41)
@pytest.mark.parametrize("verbose,terminal,lines", [
    (None, True, True), (None, False, False), (True, False, True), (False, True, False)])
def test_progress_on_stderr(verbose: bool | None, terminal: bool, lines: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(progress, "PATIENCE", 0)
    tsc.compile(tiny_model(), verbose=verbose)
    text = stderr.getvalue()
    assert ("scheduling kernels, 0 of" in text) == lines
    assert text.endswith("\r\x1b[K") or not lines


@pytest.mark.defect(41)
def test_progress_goes_to_the_log_and_to_whoever_asks(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    with caplog.at_level(logging.INFO, "tsc"):
        tsc.compile(tiny_model(), options=tsc.Options(progress=lambda what, done, total: told.append(what)))
    assert list(dict.fromkeys(told)) == ["reading the model", "scheduling kernels", "compiling kernels", "planning memory"]
    assert [r.name for r in caplog.records] == ["tsc"] * len(told)


@pytest.mark.defect(41)
def test_no_console_script_takes_a_name_that_others_use() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert "tsc" not in project.get("scripts", {})
