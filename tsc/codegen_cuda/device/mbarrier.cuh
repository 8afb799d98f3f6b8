// mbarrier (sm_90): a barrier of 8 bytes in shared memory that counts arrivals of threads and bytes of asynchronous copies.
//
// It runs through phases, numbered from 0. A phase completes when `arrivals` arrivals have come and all the bytes expected in
// it have landed; the next begins at once. Threads wait for a phase by its parity (its number's lowest bit), so a thread may
// not fall two phases behind. An arrival in phase n must be ordered after the completion of phase n - 1. Barriers are named by
// window addresses, multiples of 8.
#pragma once
#include "platform.cuh"

namespace tsc {

// Make the 8 bytes at `barrier` a barrier of `arrivals` arrivals a phase, in phase 0 (mbarrier.init, PTX ISA 9.7.13.15.9). One
// thread does this; others may use it after mbarrier_fence_init by that thread and a barrier (block_sync, or cluster_sync where
// other blocks or multicasts touch it).
TSC_DEV void mbarrier_init(u32 barrier, u32 arrivals TSC_AT) {
#ifdef TSC_EMU
  emu::mbarrier_init(barrier, arrivals, at);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#endif
}

// Let the copy engine and the cluster's other blocks see this thread's mbarrier_init
// (fence.mbarrier_init.release.cluster, 9.7.13.4).
TSC_DEV void mbarrier_fence_init(TSC_AT0) {
#ifdef TSC_EMU
  emu::fence(at);
#else
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// The 8 bytes are ordinary memory again (mbarrier.inval, 9.7.13.15.10); nobody may wait on it.
TSC_DEV void mbarrier_invalidate(u32 barrier TSC_AT) {
#ifdef TSC_EMU
  emu::mbarrier_invalidate(barrier, at);
#else
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

// One arrival, which releases this thread's earlier accesses to those who wait for the phase (mbarrier.arrive, 9.7.13.15.13).
TSC_DEV void mbarrier_arrive(u32 barrier TSC_AT) {
#ifdef TSC_EMU
  emu::mbarrier_arrive(barrier, 0, 1, at);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// First the phase expects `bytes` bytes more (at most 2^20 - 1 open in a phase), then this thread arrives
// (mbarrier.arrive.expect_tx).
TSC_DEV void mbarrier_arrive_expect(u32 barrier, u32 bytes TSC_AT) {
#ifdef TSC_EMU
  emu::mbarrier_arrive(barrier, bytes, 1, at);
#else
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

// The phase expects `bytes` bytes more; no arrival (mbarrier.expect_tx, 9.7.13.15.11).
TSC_DEV void mbarrier_expect(u32 barrier, u32 bytes TSC_AT) {
#ifdef TSC_EMU
  emu::mbarrier_arrive(barrier, bytes, 0, at);
#else
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

// An arrival on another block's barrier: `barrier` comes from map_shared (mbarrier.arrive.release.cluster.shared::cluster).
TSC_DEV void mbarrier_arrive_cluster(u32 barrier TSC_AT) {
#ifdef TSC_EMU
  emu::mbarrier_arrive(barrier, 0, 1, at);
#else
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
#endif
}

// Whether the phase of this parity has completed, perhaps after a short wait; where it has, as mbarrier_wait
// (mbarrier.try_wait.parity, 9.7.13.15.16). Ask once and go on to mbarrier_wait: in the emulator a loop around this can spin
// until the launch's time is up.
TSC_DEV bool mbarrier_test(u32 barrier, u32 parity TSC_AT) {
#ifdef TSC_EMU
  return emu::mbarrier_test(barrier, parity, at);
#else
  u32 done;
  asm volatile("{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
#endif
}

// Wait until the phase of this parity has completed: the one under way, or the one before it, for which it returns at once. (So
// on a fresh barrier the wait for parity 1 returns at once.) Acquires what the phase's arrivals released, and the bytes its
// copies brought.
TSC_DEV void mbarrier_wait(u32 barrier, u32 parity TSC_AT) {
#ifdef TSC_EMU
  emu::mbarrier_wait(barrier, parity, at);
#else
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra DONE;\nbra "
      "AGAIN;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// As mbarrier_wait, where blocks of the cluster arrived with mbarrier_arrive_cluster (.acquire.cluster).
TSC_DEV void mbarrier_wait_cluster(u32 barrier, u32 parity TSC_AT) {
#ifdef TSC_EMU
  emu::mbarrier_wait(barrier, parity, at);
#else
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n@done bra "
      "DONE;\nbra AGAIN;\n"
      "DONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// Order this thread's ordinary accesses to shared memory before what the copy engine and wgmma do next
// (fence.proxy.async.shared::cta, 9.7.13.4): the thread that wrote calls it before the barrier that the thread that issues
// waits at.
TSC_DEV void fence_async_shared(TSC_AT0) {
#ifdef TSC_EMU
  emu::fence_async_shared(at);
#else
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace tsc
