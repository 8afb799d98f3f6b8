"""The GPUs that code is made for: a table. Facts of an architecture are from the CUDA programming guide's table of compute
capabilities; multiprocessors and L2 are those of the board named beside it, and what a device reports replaces them.

How fast boards are is from NVIDIA's own documents: clocks, bytes of memory a second and operations a second of the boards'
data sheets, which divided by clock and multiprocessors give products a cycle (A100 white paper: 312 TFLOP/s in fp16, 19.5 in
fp32, 5120 bytes a cycle of L2; H100 white paper: 989.4 in fp16 at 1.83 GHz, 66.9 in fp32 at 1.98 GHz; data sheets of A40, L40S
and H200; RTX Blackwell white paper). Instructions a cycle, and bytes of shared memory, are the programming guide's: four
schedulers, 32 banks of four bytes.

Two facts are no vendor's. Of Hopper's L2 none is published: it is taken to give what the A100's does, and an H200 was found
since to give 1.23 times as much at its highest clock. And on Hopper mma.sync has 62.9 % of what wgmma has, as measured in
arXiv:2402.13499. Of B200 (sm_100a) it is not known what mma.sync has, so that nothing is said of it.
"""

from __future__ import annotations

from tsc.target import DeviceSpec, GpuLimits, GpuSpeed

_KIB, _MIB = 1 << 10, 1 << 20
_MHZ, _GB = 10**6, 10**9
_MMA_TILE = (16, 8)
_VECTOR_BYTES = 16  # the widest access of one thread


def _spec(name: str, l2: int, limits: GpuLimits, speed: GpuSpeed | None = None) -> DeviceSpec:
    return DeviceSpec(name, "cuda", _VECTOR_BYTES, 255, _MMA_TILE, l2, gpu=limits, speed=speed)


def _mma(f16: int) -> tuple[tuple[str, int], ...]:
    """Products a cycle of mma.sync: tf32 has half of what fp16 has."""
    return (("mma.f16", f16), ("mma.tf32", f16 // 2))


#: wgmma: 4096 operations a cycle and multiprocessor; mma.sync: 62.9 % of it.
_HOPPER = (*_mma(1288), ("wgmma.f16", 2048))
H100 = GpuSpeed("H100 SXM", 1980 * _MHZ, 3350 * _GB, 5120, 128, _HOPPER)
H200 = GpuSpeed("H200 SXM", 1980 * _MHZ, 4800 * _GB, 5120, 128, _HOPPER)
_A100 = GpuSpeed("A100 SXM 40 GB", 1410 * _MHZ, 1555 * _GB, 5120, 64, _mma(1024))
_A40 = GpuSpeed("A40", 1740 * _MHZ, 696 * _GB, None, 128, _mma(512))
_L40S = GpuSpeed("L40S", 2520 * _MHZ, 864 * _GB, None, 128, _mma(512))
_RTX_5090 = GpuSpeed("RTX 5090", 2407 * _MHZ, 1792 * _GB, None, 128, _mma(256))

CUDA_SPECS: dict[str, DeviceSpec] = {spec.name: spec for spec in (
    _spec("sm_80", 40 * _MIB, GpuLimits(108, 2048, 32, 164 * _KIB, 163 * _KIB), _A100),
    _spec("sm_86", 6 * _MIB, GpuLimits(84, 1536, 16, 100 * _KIB, 99 * _KIB), _A40),
    _spec("sm_89", 96 * _MIB, GpuLimits(142, 1536, 24, 100 * _KIB, 99 * _KIB), _L40S),
    _spec("sm_90a", 50 * _MIB, GpuLimits(132, 2048, 32, 228 * _KIB, 227 * _KIB, warp_groups=True), H100),
    _spec("sm_100a", 126 * _MIB, GpuLimits(148, 2048, 32, 228 * _KIB, 227 * _KIB)),  # B200
    _spec("sm_120a", 96 * _MIB, GpuLimits(170, 1536, 24, 100 * _KIB, 99 * _KIB), _RTX_5090),
)}
