"""The CPUs that code is made for: a table, and which of them this machine is."""

from __future__ import annotations

from pathlib import Path

from tsc.target import DeviceSpec

_AVX2 = ("avx", "avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512vl", "avx512dq", "avx512bw")

CPU_SPECS: dict[str, DeviceSpec] = {spec.name: spec for spec in (
    DeviceSpec("cpu-avx512", "cpu", 64, 32, (7, 64), 1 << 20, _AVX512, tuple(f"-m{f}" for f in _AVX512)),
    DeviceSpec("cpu-avx2", "cpu", 32, 16, (6, 16), 1 << 19, _AVX2, tuple(f"-m{f}" for f in _AVX2)),
    DeviceSpec("cpu-generic", "cpu", 16, 16, (6, 8), 1 << 18),
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
