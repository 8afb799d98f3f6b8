"""Machine code as text, for checks of what the compiler made of a kernel. Needs nvdisasm: from the CUDA toolkit, or from the
wheel `nvidia-cuda-nvdisasm`."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tsc.errors import InternalError, LaunchError

_WHEEL = "nvidia-cuda-nvdisasm"
_FUNCTION = re.compile(r"^\.text\.(\S+):")
#: A line with an instruction, and its opcode.
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.x]*)")


@dataclass(frozen=True, slots=True)
class Sass:
    """The machine code of one kernel; `opcodes` with their modifiers ("HMMA.16816.F32"), in order."""

    kernel: str
    text: str
    opcodes: tuple[str, ...]

    def counts(self) -> Counter[str]:
        """How often each opcode occurs, without modifiers: HMMA and IMMA (mma.sync), HGMMA (wgmma), LDSM (ldmatrix), LDGSTS
        (cp.async), UTMALDG and UTMASTG (bulk tensor copies), LDL and STL (spills and local arrays), BAR, SYNCS (mbarriers),
        ..."""
        return Counter(opcode.partition(".")[0] for opcode in self.opcodes)


def find_disassembler() -> Path | None:
    """nvdisasm on PATH or in its wheel, None where there is none."""
    found = shutil.which("nvdisasm")
    if found is not None:
        return Path(found)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(_WHEEL) or ():
            path = Path(str(file.locate()))
            if file.stem == "nvdisasm" and path.is_file():
                return path
    return None


def disassemble(cubin: bytes) -> dict[str, Sass]:
    """The kernels of a cubin by name, device functions that were not inlined among them. Raises LaunchError where there is no
    disassembler, InternalError where it refuses the cubin."""
    tool = find_disassembler()
    if tool is None:
        raise LaunchError(f"no nvdisasm was found; `pip install {_WHEEL}` brings one")
    with tempfile.TemporaryDirectory(prefix="tsc-sass-") as folder:
        path = Path(folder) / "module.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool, "--print-code", path], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise InternalError(f"nvdisasm refuses a cubin: {done.stderr.strip().splitlines()[0] if done.stderr else 'no message'}")
    return {name: Sass(name, "\n".join(lines), _opcodes(lines)) for name, lines in _functions(done.stdout).items()}


def _functions(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        begins = _FUNCTION.match(line)
        if begins:
            lines = found.setdefault(begins[1], [])
        elif line.startswith("//---"):  # the next section
            lines = []
        elif line.strip():
            lines.append(line)
    return found


def _opcodes(lines: list[str]) -> tuple[str, ...]:
    matches = (INSTRUCTION.match(line) for line in lines)
    return tuple(match[1] for match in matches if match)
