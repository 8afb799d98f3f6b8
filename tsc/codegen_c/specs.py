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


def host_spec(cpuinfo: Path = Path("/proc/cpuinfo")) -> DeviceSpec:
    """The best of `CPU_SPECS` that this machine can run, read from the system when called."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return CPU_SPECS["cpu-generic"]
    flags = next((set(line.split(":", 1)[1].split()) for line in text.splitlines() if line.startswith("flags")), set())
    return next(spec for spec in CPU_SPECS.values() if set(spec.cpu_flags) <= flags)
