// What differs between NVRTC and the emulator before any primitive: kernel declaration, thread ids, the shared window.
#pragma once

#include "types.cuh"

#ifdef TSC_EMU
#include "../emu/emu.hpp"
#endif

// TSC_KERNEL(name, max_threads, min_blocks, parameters...) { body }: a kernel launched by `name`, of at most `max_threads`
// threads a block (a multiple of 32), compiled so that `min_blocks` blocks can share a multiprocessor. TSC_DEV marks a function
// that kernels call. TSC_UNROLL unrolls the loop that follows. TSC_GRID_CONST marks a by-value parameter whose address a
// primitive takes. TSC_AT (TSC_AT0 where there is no other parameter) ends a primitive's parameter list: in the emulator it is
// the caller's source line, for reports; TSC_PASS hands it on.
#ifdef TSC_EMU

#define TSC_DEV inline
#define TSC_UNROLL
#define TSC_GRID_CONST
#define TSC_AT    , ::tsc::u32 at = __builtin_LINE()
#define TSC_AT0   ::tsc::u32 at = __builtin_LINE()
#define TSC_PASS  , at
#define TSC_PASS0 at
#define TSC_KERNEL(name, max_threads, min_blocks, ...)                                  \
  static void name(__VA_ARGS__);                                                        \
  static ::tsc::emu::Registration tsc_registration_of_##name(#name, max_threads, name); \
  static void name(__VA_ARGS__)

#else

#define TSC_DEV        __device__ __forceinline__
#define TSC_UNROLL     _Pragma("unroll")
#define TSC_GRID_CONST __grid_constant__
#define TSC_AT
#define TSC_AT0
#define TSC_PASS
#define TSC_PASS0
#define TSC_KERNEL(name, max_threads, min_blocks, ...) \
  extern "C" __global__ void __launch_bounds__(max_threads, min_blocks) name(__VA_ARGS__)

extern __shared__ __align__(1024) unsigned char tsc_dynamic_shared[];

#endif

namespace tsc {

// Address of the block's dynamic shared memory in the shared window, a multiple of 1024. All shared memory is dynamic and is
// addressed by 32-bit window addresses (PTX ISA 5.1.6, 9.7.9.x state space .shared); there are no pointers into it.
TSC_DEV u32 shared_base() {
#ifdef TSC_EMU
  return emu::shared_window_base;
#else
  return static_cast<u32>(__cvta_generic_to_shared(tsc_dynamic_shared));
#endif
}

// %tid, %ntid, %ctaid, %nctaid (PTX ISA 10): this thread in its block, threads of a block, this block in the grid, blocks of
// the grid.
TSC_DEV Index3 thread_index() {
#ifdef TSC_EMU
  return emu::thread_index();
#else
  return {threadIdx.x, threadIdx.y, threadIdx.z};
#endif
}
TSC_DEV Index3 block_size() {
#ifdef TSC_EMU
  return emu::block_size();
#else
  return {blockDim.x, blockDim.y, blockDim.z};
#endif
}
TSC_DEV Index3 block_index() {
#ifdef TSC_EMU
  return emu::block_index();
#else
  return {blockIdx.x, blockIdx.y, blockIdx.z};
#endif
}
TSC_DEV Index3 grid_size() {
#ifdef TSC_EMU
  return emu::grid_size();
#else
  return {gridDim.x, gridDim.y, gridDim.z};
#endif
}

// %laneid: this thread's place in its warp, 0 to 31. Warps are 32 threads of consecutive linear index (x fastest).
TSC_DEV u32 lane_index() {
#ifdef TSC_EMU
  return emu::lane_index();
#else
  u32 lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
#endif
}

// %cluster_ctarank, %cluster_nctarank (PTX ISA 10, sm_90): this block's rank in its cluster, and the cluster's number of
// blocks.
TSC_DEV u32 cluster_rank() {
#ifdef TSC_EMU
  return emu::cluster_rank();
#else
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#endif
}
TSC_DEV u32 cluster_size() {
#ifdef TSC_EMU
  return emu::cluster_size();
#else
  u32 size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#endif
}

}  // namespace tsc
