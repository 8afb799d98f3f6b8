// TMA (sm_90): the copy engine moves boxes of a 1- to 5-dimensional tensor between global and shared memory.
//
// A TensorMap says what the tensor is: address, element type, sizes, strides, the box, the swizzle. The host encodes it
// (cuTensorMapEncodeTiled; in the emulator tsc_emu_tensor_map of emu/abi.h) and passes it by value as a `const TSC_GRID_CONST
// TensorMap` parameter. Axes, and so coordinates, run from the innermost out. A box at `coordinate` is the elements
// coordinate[i] .. coordinate[i] + box[i] - 1. A box may reach past the end of an axis, and one that is loaded may begin before
// it: what is outside the tensor is loaded as zeros and not stored, and counts in the bytes. The innermost coordinate is a
// multiple of 16 bytes, and no coordinate of a store is negative: an H200 ends the kernel with an illegal instruction
// otherwise, of which the PTX ISA says nothing. In shared memory a box is dense, innermost axis first, and its 16-byte chunks
// are permuted by the swizzle: see swizzled.
#pragma once
#include "platform.cuh"

namespace tsc {

#ifdef TSC_EMU
using TensorMap = tsc_emu_tensor_map;
#else
struct alignas(64) TensorMap {
  u64 opaque[16];
};
#endif

// Where the byte at `offset` of a dense box lies: SPAN (0, 32, 64 or 128) is the swizzle, and then also the bytes of a box's
// innermost axis. The chunk index (bits 4 up) is xored with the lowest 1, 2 or 3 bits of offset / 128 (PTX ISA 5.5.6). The box
// must begin at a multiple of 8 SPAN (128 where SPAN is 0), which makes it a permutation within blocks of that size, of
// addresses as of offsets.
template <u32 SPAN>
TSC_DEV constexpr u32 swizzled(u32 offset) {
  static_assert(SPAN == 0 || SPAN == 32 || SPAN == 64 || SPAN == 128, "the copy engine swizzles within 32, 64 or 128 bytes");
  return SPAN == 0 ? offset : offset ^ (offset >> 3 & (SPAN - 16));
}

// Fetch the map itself ahead of its first use (prefetch.tensormap, 9.7.9.16).
TSC_DEV void tma_prefetch(const TensorMap& map TSC_AT) {
#ifdef TSC_EMU
  emu::tma_prefetch(&map, at);
#else
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
#endif
}

#ifndef TSC_EMU
#define TSC_TMA_LOAD(rank, list, form, tail, ...)                                                                            \
  asm volatile("cp.async.bulk.tensor." rank ".shared::cluster.global.mbarrier::complete_tx::bytes" form " [%0], [%1, {" list \
               "}], [%2]" tail ";" ::"r"(target),                                                                            \
               "l"(&map), "r"(barrier), __VA_ARGS__                                                                          \
               : "memory")
#define TSC_TMA_STORE(rank, list, ...)                                                                                         \
  asm volatile("cp.async.bulk.tensor." rank ".global.shared::cta.bulk_group [%0, {" list "}], [%1];" ::"l"(&map), "r"(source), \
               __VA_ARGS__                                                                                                     \
               : "memory")
#define TSC_C1 "r"(coordinate[0])
#define TSC_C2 TSC_C1, "r"(coordinate[1])
#define TSC_C3 TSC_C2, "r"(coordinate[2])
#define TSC_C4 TSC_C3, "r"(coordinate[3])
#define TSC_C5 TSC_C4, "r"(coordinate[4])
#endif

// Load a box to `target` (cp.async.bulk.tensor, PTX ISA 9.7.9.25.5.2). One thread issues it and goes on; the box's bytes then
// complete on `barrier`, a barrier of this block, in the phase it is in now. `target` may be touched after a wait for that
// phase.
template <int RANK>
TSC_DEV void tma_load(u32 target, const TensorMap& map, u32 barrier, const i32 (&coordinate)[RANK] TSC_AT) {
  static_assert(1 <= RANK && RANK <= 5, "a tensor map has 1 to 5 axes");
#ifdef TSC_EMU
  emu::tma_load(target, &map, barrier, coordinate, RANK, 0, at);
#else
  if constexpr (RANK == 1) TSC_TMA_LOAD("1d", "%3", "", "", TSC_C1);
  if constexpr (RANK == 2) TSC_TMA_LOAD("2d", "%3, %4", "", "", TSC_C2);
  if constexpr (RANK == 3) TSC_TMA_LOAD("3d", "%3, %4, %5", "", "", TSC_C3);
  if constexpr (RANK == 4) TSC_TMA_LOAD("4d", "%3, %4, %5, %6", "", "", TSC_C4);
  if constexpr (RANK == 5) TSC_TMA_LOAD("5d", "%3, %4, %5, %6, %7", "", "", TSC_C5);
#endif
}

// The same box to the place `target` of every block whose rank's bit is set in `blocks`, completing in each on its own barrier
// at the place `barrier` (.multicast::cluster): each of these blocks must expect the bytes.
template <int RANK>
TSC_DEV void tma_load_multicast(u32 target, const TensorMap& map, u32 barrier, const i32 (&coordinate)[RANK],
                                u16 blocks TSC_AT) {
  static_assert(1 <= RANK && RANK <= 5, "a tensor map has 1 to 5 axes");
#ifdef TSC_EMU
  emu::tma_load(target, &map, barrier, coordinate, RANK, blocks, at);
#else
  if constexpr (RANK == 1) TSC_TMA_LOAD("1d", "%4", ".multicast::cluster", ", %3", "h"(blocks), TSC_C1);
  if constexpr (RANK == 2) TSC_TMA_LOAD("2d", "%4, %5", ".multicast::cluster", ", %3", "h"(blocks), TSC_C2);
  if constexpr (RANK == 3) TSC_TMA_LOAD("3d", "%4, %5, %6", ".multicast::cluster", ", %3", "h"(blocks), TSC_C3);
  if constexpr (RANK == 4) TSC_TMA_LOAD("4d", "%4, %5, %6, %7", ".multicast::cluster", ", %3", "h"(blocks), TSC_C4);
  if constexpr (RANK == 5) TSC_TMA_LOAD("5d", "%4, %5, %6, %7, %8", ".multicast::cluster", ", %3", "h"(blocks), TSC_C5);
#endif
}

// Store the box at `source` to the tensor, as part of this thread's open bulk group. What ordinary stores put there needs
// fence_async_shared by those who stored, then a barrier, before.
template <int RANK>
TSC_DEV void tma_store(const TensorMap& map, u32 source, const i32 (&coordinate)[RANK] TSC_AT) {
  static_assert(1 <= RANK && RANK <= 5, "a tensor map has 1 to 5 axes");
#ifdef TSC_EMU
  emu::tma_store(&map, source, coordinate, RANK, at);
#else
  if constexpr (RANK == 1) TSC_TMA_STORE("1d", "%2", TSC_C1);
  if constexpr (RANK == 2) TSC_TMA_STORE("2d", "%2, %3", TSC_C2);
  if constexpr (RANK == 3) TSC_TMA_STORE("3d", "%2, %3, %4", TSC_C3);
  if constexpr (RANK == 4) TSC_TMA_STORE("4d", "%2, %3, %4, %5", TSC_C4);
  if constexpr (RANK == 5) TSC_TMA_STORE("5d", "%2, %3, %4, %5, %6", TSC_C5);
#endif
}

#ifndef TSC_EMU
#undef TSC_TMA_LOAD
#undef TSC_TMA_STORE
#undef TSC_C1
#undef TSC_C2
#undef TSC_C3
#undef TSC_C4
#undef TSC_C5
#endif

// Copies without a tensor map: `bytes`, a multiple of 16, between addresses that are multiples of 16 (cp.async.bulk, PTX
// ISA 9.7.9.25.4.1). bulk_load completes on `barrier` as tma_load does; bulk_store belongs to the open bulk group as tma_store
// does.
TSC_DEV void bulk_load(u32 target, const void* source, u32 bytes, u32 barrier TSC_AT) {
#ifdef TSC_EMU
  emu::bulk_load(target, source, bytes, barrier, at);
#else
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
#endif
}
TSC_DEV void bulk_store(void* target, u32 source, u32 bytes TSC_AT) {
#ifdef TSC_EMU
  emu::bulk_store(target, source, bytes, at);
#else
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(source), "r"(bytes) : "memory");
#endif
}

// Close this thread's open group of stores (cp.async.bulk.commit_group, 9.7.9.25.3.1).
TSC_DEV void bulk_commit(TSC_AT0) {
#ifdef TSC_EMU
  emu::bulk_commit(at);
#else
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Wait until at most PENDING of this thread's newest groups still read their source
// (cp.async.bulk.wait_group.read, 9.7.9.25.3.3): the shared memory of the others may be written again. Before it leaves, a
// thread must have waited so for all its groups.
template <int PENDING>
TSC_DEV void bulk_wait_read(TSC_AT0) {
#ifdef TSC_EMU
  emu::bulk_wait(PENDING, true, at);
#else
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
#endif
}

// Wait until at most PENDING of this thread's newest groups are under way (cp.async.bulk.wait_group): the writes of the others
// are visible to it.
template <int PENDING>
TSC_DEV void bulk_wait(TSC_AT0) {
#ifdef TSC_EMU
  emu::bulk_wait(PENDING, false, at);
#else
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

}  // namespace tsc
