"""The CPUs that code is made for: a table, and which of them this machine is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tsc.loop_ir.marks import FMA_TILE
from tsc.target import DeviceSpec

_COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_ARITHMETIC = frozenset({"add", "sub", "mul", "neg", "select"}) | _COMPARE
_INTEGER = _ARITHMETIC | {"min", "max"}
#: What the header (`tsc_kernel.h`, `tsc_math.h`) has a vector form of, by the dtype of the operands.
_VECTOR_FORMS: Mapping[str, frozenset[str]] = {
    "float32": _ARITHMETIC | {"div", "isnan", "abs", "min", "max", "reciprocal", "sign", "exp", "log", "erf", "tanh", "sqrt",
                              "floor", "ceil", "round"},
    "float64": _ARITHMETIC | {"div", "isnan"},
    "int32": _INTEGER, "int64": _INTEGER,
    "bool": frozenset({"and", "or", "xor", "not", "select"})}
VECTOR_CALLS = frozenset((fn, dtype) for dtype, functions in _VECTOR_FORMS.items() for fn in functions)
#: Vectors this wide come with masks for their loads (AVX2, AVX-512); for shorter ones a loop is rather split.
_MASKED_BYTES = 32


def cpu_spec(name: str, vector_bytes: int, registers: int, instr_tile: tuple[int, int], l2_bytes: int,
             flags: tuple[str, ...] = ()) -> DeviceSpec:
    """A CPU for which the C back end makes code; `flags` are features as the system reports them and compilers take them."""
    return DeviceSpec(name, "cpu", vector_bytes, registers, instr_tile, l2_bytes, flags, tuple(f"-m{f}" for f in flags),
                      intrinsics=(FMA_TILE,), masks=vector_bytes >= _MASKED_BYTES, vector_calls=VECTOR_CALLS)


_AVX2 = ("avx", "avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512vl", "avx512dq", "avx512bw")

CPU_SPECS: dict[str, DeviceSpec] = {spec.name: spec for spec in (
    cpu_spec("cpu-avx512", 64, 32, (7, 64), 1 << 20, _AVX512),
    cpu_spec("cpu-avx2", 32, 16, (6, 16), 1 << 19, _AVX2),
    cpu_spec("cpu-generic", 16, 16, (6, 8), 1 << 18),
)}


CPUINFO = Path("/proc/cpuinfo")


def host_spec(cpuinfo: Path = CPUINFO) -> DeviceSpec:
    """The best of `CPU_SPECS` that this machine can run, read from the system when called."""
    flags = set(_first_core(cpuinfo).get("flags", "").split())
    return next(spec for spec in CPU_SPECS.values() if set(spec.cpu_flags) <= flags)


def machine_name(cpuinfo: Path = CPUINFO) -> str:
    """What this machine's processor calls itself, with family and model, by which those of one name are told apart."""
    found = _first_core(cpuinfo)
    return (f"{found.get('model name', 'unknown')}, family {found.get('cpu family', '?')}, model {found.get('model', '?')}")


def _first_core(cpuinfo: Path) -> dict[str, str]:
    """What the system says of its first core, by name."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first, *_ = text.split("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
