// Barriers and fences.
#pragma once
#include "platform.cuh"

namespace tsc {

// Wait for all threads of the block; what they wrote before is visible after (bar.sync 0, PTX ISA 9.7.13.1). No thread may have
// left.
TSC_DEV void block_sync(TSC_AT0) {
#ifdef TSC_EMU
  emu::barrier_sync(0, 0, at);
#else
  __syncthreads();
#endif
}

// Wait for the lanes in `mask`, this one among them; orders their memory accesses (bar.warp.sync, 9.7.13.2). Shuffles and mma
// do not.
TSC_DEV void warp_sync(u32 mask = 0xffffffffu TSC_AT) {
#ifdef TSC_EMU
  emu::warp_sync(mask, at);
#else
  __syncwarp(mask);
#endif
}

// Barrier `id` (1 to 15) among `threads` threads, whole warps (bar.sync id, threads; 9.7.13.1). `arrive` counts but does not
// wait, so that a producer can hand over without stopping.
TSC_DEV void named_barrier_sync(u32 id, u32 threads TSC_AT) {
#ifdef TSC_EMU
  emu::barrier_sync(id, threads, at);
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}
TSC_DEV void named_barrier_arrive(u32 id, u32 threads TSC_AT) {
#ifdef TSC_EMU
  emu::barrier_arrive(id, threads, at);
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// Order this thread's earlier accesses before its later ones, as seen by the block or by the whole device (fence.acq_rel.cta /
// .gpu, 9.7.13.4). A fence before an atomic releases; a fence after an atomic acquires.
TSC_DEV void fence_block(TSC_AT0) {
#ifdef TSC_EMU
  emu::fence(at);
#else
  asm volatile("fence.acq_rel.cta;" ::: "memory");
#endif
}
TSC_DEV void fence_device(TSC_AT0) {
#ifdef TSC_EMU
  emu::fence(at);
#else
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

// Wait until the launch before this one has ended and what it wrote is visible, and from then on let the next one begin
// (griddepcontrol, 9.7.13.13; CUDA programming guide, programmatic dependent launch). A kernel that begins so may be put on the
// device while the one before it still runs; launched otherwise it waits for nothing. All threads, before any global access.
TSC_DEV void begin_in_turn() {
#if !defined(TSC_EMU) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace tsc
