"""The GPUs that code is made for: a table. Facts of an architecture are from the CUDA programming guide's table of compute
capabilities; multiprocessors and L2 are those of the board named beside it, and what a device reports replaces them."""

from __future__ import annotations

from tsc.target import DeviceSpec, GpuLimits

_KIB, _MIB = 1 << 10, 1 << 20
_MMA_TILE = (16, 8)
_VECTOR_BYTES = 16  # the widest access of one thread


def _spec(name: str, l2: int, limits: GpuLimits) -> DeviceSpec:
    return DeviceSpec(name, "cuda", _VECTOR_BYTES, 255, _MMA_TILE, l2, gpu=limits)


CUDA_SPECS: dict[str, DeviceSpec] = {spec.name: spec for spec in (
    _spec("sm_80", 40 * _MIB, GpuLimits(108, 2048, 32, 164 * _KIB, 163 * _KIB)),  # A100
    _spec("sm_86", 6 * _MIB, GpuLimits(84, 1536, 16, 100 * _KIB, 99 * _KIB)),  # A40
    _spec("sm_89", 96 * _MIB, GpuLimits(142, 1536, 24, 100 * _KIB, 99 * _KIB)),  # L40S
    _spec("sm_90a", 50 * _MIB, GpuLimits(132, 2048, 32, 228 * _KIB, 227 * _KIB, warp_groups=True)),  # H100 SXM
    _spec("sm_100a", 126 * _MIB, GpuLimits(148, 2048, 32, 228 * _KIB, 227 * _KIB)),  # B200
    _spec("sm_120a", 96 * _MIB, GpuLimits(170, 1536, 24, 100 * _KIB, 99 * _KIB)),  # RTX 5090
)}
