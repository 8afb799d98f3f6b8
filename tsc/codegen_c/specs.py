"""The CPUs that code is made for: a table, and which of them this machine is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from tsc.errors import LaunchError
from tsc.loop_ir.marks import BFLOAT_TILE, FMA_TILE, PAIR_TILE, QUAD_TILE, SQUARES
from tsc.target import DeviceSpec
from tsc.te.intrinsics import WORDS

_COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "neg", "select"}) | _COMPARE
_INTEGER = _ARITHMETIC | {"min", "max"}
#: What the header (`tsc_kernel.h`, `tsc_math.h`) has a vector form of, by the dtype of the operands.
_VECTOR_FORMS: Mapping[str, frozenset[str]] = {
    "float32": _ARITHMETIC | {"div", "isnan", "abs", "min", "max", "reciprocal", "sign", "exp", "log", "erf", "tanh", "sqrt",
                              "floor", "ceil", "round", "to_bfloat"},
    "float64": _ARITHMETIC | {"div", "isnan"},
    "int32": _INTEGER | {fn for both in WORDS.values() for fn in both}, "int64": _INTEGER,
    **dict.fromkeys(("int8", "uint8", "int16"), frozenset({"select"})), "uint16": frozenset({"select", "from_bfloat"}),
    "bool": frozenset({"and", "or", "xor", "not", "select"})}
VECTOR_CALLS = frozenset((fn, dtype) for dtype, functions in _VECTOR_FORMS.items() for fn in functions)
#: Vectors this wide come with masks for their loads (AVX2, AVX-512); for shorter ones a loop is rather split.
_MASKED_BYTES = 32


def cpu_spec(name: str, vector_bytes: int, registers: int, instr_tile: tuple[int, int], l2_bytes: int,
             flags: tuple[str, ...] = ()) -> DeviceSpec:
    """A CPU for which the C back end makes code; `flags` are features as the system reports them, which compilers take without
    the underscores."""
    squares = (name for lanes, name in SQUARES.items() if 4 * lanes == vector_bytes)
    intrinsics = (FMA_TILE, PAIR_TILE, *squares, *(name for flag, name in _DOTS.items() if flag in flags))
    return DeviceSpec(name, "cpu", vector_bytes, registers, instr_tile, l2_bytes, flags,
                      tuple(f"-m{f.replace('_', '')}" for f in flags), intrinsics=intrinsics,
                      masks=vector_bytes >= _MASKED_BYTES, vector_calls=VECTOR_CALLS)


_AVX2 = ("avx", "avx2", "fma")
#: What CPUs with these sum up at once, products of four bytes and of two bfloat16.
_DOTS: Mapping[str, str] = {"avx512_vnni": QUAD_TILE, "avx512_bf16": BFLOAT_TILE}


def _avx512(name: str, *more: str) -> DeviceSpec:
    """A CPU with AVX-512 and `more` features."""
    flags = (*_AVX2, "avx512f", "avx512vl", "avx512dq", "avx512bw", *more)
    return cpu_spec(name, 64, 32, (7, 64), 1 << 20, flags)


CPU_SPECS: dict[str, DeviceSpec] = {spec.name: spec for spec in (
    _avx512("cpu-avx512-vnni", "avx512_vnni"),
    _avx512("cpu-avx512"),
    cpu_spec("cpu-avx2", 32, 16, (6, 16), 1 << 19, _AVX2),
    cpu_spec("cpu-generic", 16, 16, (6, 8), 1 << 18),
)}
#: Those of `precision="bf16"`.
BFLOAT_SPECS: dict[str, DeviceSpec] = {spec.name: spec for spec in (
    _avx512("cpu-avx512-bf16", "avx512_vnni", "avx512_bf16"),
)}

#: What was measured on a class of machines, for one of the specs: its register tile, and how far panels are asked for ahead.
#: With what others have MiniLM takes on a Zen 5 1.05 to 1.07 times as long (`dev.py bench pair 8769e67`, at 44e2ee9), on a Zen
#: 4 (25-1) 1.08 times with 7 tokens, 1.00 to 1.01 with more (`dev.py bench pair 749a75e`).
_MEASURED: Mapping[tuple[str, str], tuple[tuple[int, int], int]] = {
    (machine, name): measured for machine, measured in (("amd-26-0", ((6, 64), 16384)), ("amd-25-1", ((7, 64), 8192)))
    for name in ("cpu-avx512-bf16", "cpu-avx512-vnni", "cpu-avx512")}
CPUINFO = Path("/proc/cpuinfo")
_NAME = re.compile(r"\s*(\w+)\b.*, family (\d+), model (\d+)")


def host_spec(cpuinfo: Path = CPUINFO, table: Mapping[str, DeviceSpec] = MappingProxyType(CPU_SPECS)) -> DeviceSpec:
    """The best of some DeviceSpecs that this machine can run, read from the system when called, with what is known of its
    class. Raises LaunchError where it can run none of them."""
    core = _first_core(cpuinfo)
    flags = set(core.get("flags", "").split())
    spec = next((spec for spec in table.values() if set(spec.cpu_flags) <= flags), None)
    if spec is None:
        missing = " or ".join(" ".join(sorted(set(spec.cpu_flags) - flags)) for spec in table.values())
        raise LaunchError(f"this machine's processor cannot run code for {' or '.join(table)}: it lacks {missing}")
    tile, ahead = _MEASURED.get((machine_class(_name_of(core)), spec.name), (spec.instr_tile, spec.ahead))
    return replace(spec, instr_tile=tile, ahead=ahead)


def machine_class(machine: str) -> str:
    """The class of a machine by its name, of which all have one microarchitecture: vendor, family and, of the model, all but
    its last hexadecimal digit, which tells steppings and packages apart; "" where it says too little."""
    found = _NAME.fullmatch(machine)
    return "" if found is None else f"{found[1].lower()}-{found[2]}-{int(found[3]) // 16}"


def machine_name(cpuinfo: Path = CPUINFO) -> str:
    """What this machine's processor calls itself, with family and model, by which those of one name are told apart."""
    return _name_of(_first_core(cpuinfo))


def _name_of(core: Mapping[str, str]) -> str:
    return f"{core.get('model name', 'unknown')}, family {core.get('cpu family', '?')}, model {core.get('model', '?')}"


def _first_core(cpuinfo: Path) -> dict[str, str]:
    """What the system says of its first core, by name."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first, *_ = text.split("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
