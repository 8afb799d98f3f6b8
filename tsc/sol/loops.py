"""Machine code in loops, and how often each of them is executed.

A branch back to a label closes a loop; what lies between is its body, of which both sides of an `if` count as executed. How
often is not in the machine code: it follows from what a block is known to do in all (`Known`, counted in the emulator), which
the loops' own instructions must add up to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from tsc.codegen_cuda.sass import INSTRUCTION, Sass
from tsc.loop_ir.gpu.mma import GROUP
from tsc.runtime.launch_frame import WARP
from tsc.tune.fit import non_negative

_LABEL = re.compile(r"^\s*(\.L_x_\d+):")
_TARGET = re.compile(r"\((\.L_x_\d+)\)")
_GROUP = re.compile(r"(\d+)x(\d+)x(\d+)")
_MATRIX_BYTES = 128
#: In place of what is executed by no lane, and takes a turn all the same.
_NEVER = "NEVER"
#: Instructions of the pipe for floats.
_FLOATS = frozenset(("FFMA", "FADD", "FMUL"))
#: By the digits of an mma.sync its rows, columns and steps.
_SHAPES = {"16816": (16, 8, 16), "1688": (16, 8, 8), "1684": (16, 8, 4)}
#: What makes an access narrower or wider than four bytes.
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
#: How far what the emulator counts can be trusted to be what the machine code does: matrix instructions are the same ones,
#: reads of shared memory hardly ever change, other accesses may be predicated off in some trips.
_TRUST = (100.0, 10.0, 1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Known:
    """What a block does in all, or instructions of one warp: matrix instructions (of warps; one of a warp group is four), and
    bytes moved between registers and memories, all lanes together (a copy from global into shared memory is both; what a warp
    group multiplies is loaded by its warps)."""

    matrix: float = 0
    shared_loads: float = 0
    shared_stores: float = 0
    global_loads: float = 0
    global_stores: float = 0

    @property
    def numbers(self) -> list[float]:
        """The same as a list."""
        return [float(getattr(self, field.name)) for field in fields(self)]


@dataclass(frozen=True, slots=True)
class Region:
    """The instructions of a warp in one loop, without those of loops within it; the first Region is what is in no loop, and
    `outer` numbers the one around. `floats` of the `instructions` are of the pipe for floats."""

    outer: int
    instructions: int
    floats: int
    known: Known


@dataclass(frozen=True, slots=True)
class Executed:
    """What a block executes: `instructions` of warps, `floats` of them of the pipe for floats. `unexplained` is how far what
    the loops add up to is from what was counted, and can be trusted most, as a part of it; where a loop has nothing that is
    counted, `least` says that it was taken to be executed as often as what is around it. `known` is what the instructions do if
    all lanes take part."""

    instructions: float
    floats: float
    unexplained: float
    least: bool
    known: Known = Known()


@dataclass(frozen=True, slots=True)
class Matrix:
    """The matrix instructions of a kernel: of what `kind` ("mma.f16"; "" where there is none), the `products` that one of them
    adds up, on average, the warps that execute it together, and the bytes of shared memory that it reads by itself."""

    kind: str = ""
    products: float = 0
    warps: int = 1
    shared_bytes: float = 0


def matrix_of(sass: Sass) -> Matrix:
    """The matrix instructions of a kernel; those of a warp group read both operands, halves, from shared memory."""
    found = [_matrix(opcode) for opcode in sass.opcodes if opcode.startswith(("HMMA", "HGMMA"))]
    if not found:
        return Matrix()
    return Matrix(found[0].kind, sum(m.products for m in found) / len(found), found[0].warps,
                  sum(m.shared_bytes for m in found) / len(found))


def _matrix(opcode: str) -> Matrix:
    parts = opcode.split(".")
    kind = "tf32" if "TF32" in parts else "f16"
    if parts[0] == "HGMMA":
        rows, columns, depth = map(int, _GROUP.fullmatch(parts[1]).groups())  # type: ignore[union-attr]  # as all are written
        return Matrix(f"wgmma.{kind}", rows * columns * depth, GROUP, (rows + columns) * depth * 2)
    rows, columns, depth = _SHAPES[parts[1]]
    return Matrix(f"mma.{kind}", rows * columns * depth)


def regions_of(sass: Sass) -> tuple[Region, ...]:
    """A kernel's loops, what is in none first, each before those within it. Functions that it calls, behind its end, are left
    out."""
    opcodes, jumps, labels = _read(sass.text)
    end = max((k for k, opcode in enumerate(opcodes) if opcode.startswith("EXIT")), default=len(opcodes) - 1)
    spans: dict[int, int] = {}
    for at, label in jumps:
        begin = labels.get(label, at)
        if begin < at <= end:
            spans[begin] = max(spans.get(begin, 0), at)
    loops = [(-1, end), *sorted(spans.items())]
    inner = [max(k for k, (begin, last) in enumerate(loops) if begin <= at <= last) for at in range(end + 1)]
    found = []
    for number, (begin, _) in enumerate(loops):
        own = [opcode for at, opcode in enumerate(opcodes[:end + 1]) if inner[at] == number and not opcode.startswith("NOP")]
        outer = max((k for k, (first, last) in enumerate(loops[:number]) if first < begin <= last), default=0)
        found.append(Region(outer, len(own), sum(o.partition(".")[0] in _FLOATS for o in own), _known(own)))
    return tuple(found)


def _read(text: str) -> tuple[list[str], list[tuple[int, str]], dict[str, int]]:
    """Opcodes, the branches among them as (place, label), and the places of labels."""
    opcodes: list[str] = []
    jumps: list[tuple[int, str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        label, instruction = _LABEL.match(line), INSTRUCTION.match(line)
        if label:
            labels[label[1]] = len(opcodes)
        elif instruction:
            target = _TARGET.search(line) if instruction[1].startswith("BRA") else None
            if target:
                jumps.append((len(opcodes), target[1]))
            opcodes.append(_NEVER if "@!PT " in line else instruction[1])
    return opcodes, jumps, labels


def _known(opcodes: Sequence[str]) -> Known:
    """What such instructions do, each executed once by a whole warp."""
    counts = dict.fromkeys(("matrix", "shared_loads", "shared_stores", "global_loads", "global_stores"), 0)
    for what, amount in (pair for opcode in opcodes for pair in _moves(opcode)):
        counts[what] += amount
    return Known(**counts)


def _moves(opcode: str) -> Iterator[tuple[str, int]]:
    name, *parts = opcode.split(".")
    size = WARP * next((_WIDTHS[part] for part in parts if part in _WIDTHS), 4)
    match name:
        case "HMMA" | "HGMMA":
            yield "matrix", 1
            yield "shared_loads", int(_matrix(opcode).shared_bytes) // GROUP
        case "LDSM":
            yield "shared_loads", _MATRIX_BYTES * next((int(part) for part in parts if part in ("2", "4")), 1)
        case "LDS":
            yield "shared_loads", size
        case "STS":
            yield "shared_stores", size
        case "LDG":
            yield "global_loads", size
        case "STG":
            yield "global_stores", size
        case "LDGSTS":
            yield "global_loads", size
            yield "shared_stores", size


def executed(regions: Sequence[Region], known: Known, warps: int) -> Executed:
    """What a block of so many warps executes, that does what is `known`: what is in no loop once a warp, each loop as often as
    fits best, in the sense of least squares of parts of what is known."""
    total, trust = np.array(known.numbers), np.array(_TRUST)
    counted = total > 0
    each = np.array([region.known.numbers for region in regions])[:, counted].T
    columns = each * (trust / np.maximum(total, 1))[counted, None]
    wanted = trust[counted]
    seen = [k for k in range(1, len(regions)) if columns[:, k].any()]
    times = np.zeros(len(regions))
    times[0] = warps
    if seen:
        times[seen] = non_negative(columns[:, seen], wanted - columns[:, 0] * warps)
    for k in sorted({*range(1, len(regions))} - {*seen}):
        times[k] = times[regions[k].outer]
    apart = (np.abs(columns @ times - wanted) / wanted)[wanted == wanted.max()] if seen else np.zeros(1)
    moved = Known(*map(float, times @ np.array([region.known.numbers for region in regions])))
    return Executed(float(times @ [r.instructions for r in regions]), float(times @ [r.floats for r in regions]),
                    float(apart.max()), len(seen) + 1 < len(regions), moved)
