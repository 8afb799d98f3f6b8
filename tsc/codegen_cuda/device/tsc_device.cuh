// The device layer of `tsc`: the only place where PTX, or its emulation on a CPU, is spoken.
//
// A kernel includes this file alone. Under NVRTC (or nvcc) every primitive is inline PTX and needs no CUDA header; under a host C++
// compiler with -DTSC_EMU it calls the emulator (emu/emu.hpp), which states and checks the same meaning. Each primitive is declared
// once, with one comment that says what it means and where the PTX ISA says so; `g = lane / 4`, `t = lane % 4` throughout.
//
//   platform.cuh    kernel declaration, ids, shared window        memory.cuh      guarded global and shared access
//   number.cuh      f16, bf16, tf32 and their rounding            async_copy.cuh  cp.async, commit and wait groups
//   sync.cuh        barriers and fences                           mma.cuh         swizzle, ldmatrix, mma warp tiles
//   warp.cuh        shuffles, votes, warp and block reductions    atomic.cuh      atomics
//   math.cuh        the float functions kernels use
//
// Kernels for sm_90a include hopper.cuh as well: mbarrier, TMA, wgmma, clusters.
#pragma once
#include "platform.cuh"
#include "number.cuh"
#include "memory.cuh"
#include "sync.cuh"
#include "async_copy.cuh"
#include "mma.cuh"
#include "warp.cuh"
#include "atomic.cuh"
#include "math.cuh"
