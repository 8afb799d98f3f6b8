"""The recorder that every stage of the spine passes through: dumps, overrides of text, and the Decision log."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tsc.errors import InputError, InternalError, LaunchError
from tsc.runtime.files import read_regular

#: Stages whose product is text that is read back, so that a file may replace it.
OVERRIDABLE = frozenset({"factoring", "config", "schedule", "c"})


@dataclass(frozen=True, slots=True)
class Decision:
    """Something a stage chose or refused: the stage, what it is about, and why."""

    stage: str
    subject: str
    reason: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.subject}: {self.reason}"


@dataclass(slots=True)
class Recorder:
    """Where one compilation leaves its traces.

    `dump_to` is a folder that gets one file `<name>.<stage>` a record (None: nothing is written); `override_from` is a folder
    whose file of the same name replaces a factoring, a config, a schedule or a source. `decisions` is the log that `explain`
    prints.
    """

    dump_to: Path | None = None
    override_from: Path | None = None
    decisions: list[Decision] = field(default_factory=list)

    def record(self, stage: str, name: str, text: str | Callable[[], str]) -> None:
        """Dump `text` (or what calling it returns, made only when dumping). LaunchError if the folder is not writable."""
        if self.dump_to is None:
            return
        path = self.dump_to / file_name(stage, name)
        content = text if isinstance(text, str) else text()
        try:
            self.dump_to.mkdir(parents=True, exist_ok=True)
            path.write_text(content if content.endswith("\n") else content + "\n", encoding="utf-8")
        except OSError as error:
            reason = f"cannot write the dump '{path}' ({error.strerror}); point TSC_DUMP at a writable folder"
            raise LaunchError(reason) from error

    def override(self, stage: str, name: str) -> str | None:
        """The text that replaces what `stage` made for `name`, if the user gave one; recorded as a decision."""
        if stage not in OVERRIDABLE:
            raise InternalError(f"stage '{stage}' cannot be overridden; only {', '.join(sorted(OVERRIDABLE))} can")
        if self.override_from is None:
            return None
        path = self.override_from / file_name(stage, name)
        if not path.is_file():
            return None
        self.decide(stage, name, f"replaced by the text of {path}")
        try:
            return read_regular(path).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read '{path}' in place of stage '{stage}' ({error}); correct or remove it") from error

    def decide(self, stage: str, subject: str, reason: str) -> None:
        """Append to the Decision log."""
        self.decisions.append(Decision(stage, subject, reason))


def file_name(stage: str, name: str) -> str:
    """`<name>.<stage>`, with what a file system may refuse in `name` replaced by '_'."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:160]}.{stage}"
