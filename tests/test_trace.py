"""The recorder: dumps, overrides, decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tsc.errors import InternalError, LaunchError
from tsc.trace import Decision, Recorder


def test_nothing_is_made_without_a_folder() -> None:
    def never() -> str:
        raise AssertionError("text was made though nobody asked for a dump")

    Recorder().record("te", "group", never)


def test_dump(tmp_path: Path) -> None:
    recorder = Recorder(dump_to=tmp_path / "new" / "dump")
    recorder.record("te", "reduce_1", "text")
    recorder.record("c", "/encoder/layer.0/Add", lambda: "int x;\n")
    assert {p.name: p.read_text() for p in (tmp_path / "new" / "dump").iterdir()} == {
        "reduce_1.te": "text\n", "_encoder_layer.0_Add.c": "int x;\n"}


def test_dump_to_a_file_is_a_machine_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(LaunchError, match="TSC_DUMP"):
        Recorder(dump_to=tmp_path / "taken").record("te", "a", "b")


def test_override_is_a_decision(tmp_path: Path) -> None:
    recorder = Recorder(override_from=tmp_path)
    (tmp_path / "k.schedule").write_text("domain: …")
    assert recorder.override("schedule", "k") == "domain: …"
    assert recorder.override("c", "k") is None and Recorder().override("schedule", "k") is None
    assert [(d.stage, d.subject) for d in recorder.decisions] == [("schedule", "k")]
    with pytest.raises(InternalError):
        recorder.override("te", "k")


def test_decisions_keep_their_order() -> None:
    recorder = Recorder()
    recorder.decide("fuse", "Add_1", "fused with MatMul_0: its only consumer")
    recorder.decide("split", "group", "no pattern fits")
    assert recorder.decisions[0] == Decision("fuse", "Add_1", "fused with MatMul_0: its only consumer")
    assert str(recorder.decisions[1]) == "split: group: no pattern fits"
