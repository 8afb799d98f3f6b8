// Shuffles, votes, and reductions over a warp and a block. All 32 lanes take part in each; none of these orders memory
// accesses.
#pragma once
#include "memory.cuh"
#include "sync.cuh"

namespace tsc {

#ifdef TSC_EMU
// The value lane `source` holds, all lanes taking part.
template <class T>
T exchange(T value, u32 source, const char* what, u32 at) {
  T all[32];
  emu::warp_exchange(all, &value, sizeof(T), what, at);
  return all[source & 31];
}
#endif

// shfl.sync (PTX ISA 9.7.9.6), T of 4 bytes. `shuffle_xor`: the value of lane `lane ^ mask`; `shuffle_down`: of lane `lane +
// delta`, own value where that is past 31; `shuffle_from`: of lane `source`.
template <class T>
TSC_DEV T shuffle_xor(T value, u32 mask TSC_AT) {
  static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
#ifdef TSC_EMU
  return exchange(value, emu::lane_index() ^ mask, "shuffle_xor", at);
#else
  return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
#endif
}
template <class T>
TSC_DEV T shuffle_down(T value, u32 delta TSC_AT) {
  static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
#ifdef TSC_EMU
  const u32 lane = emu::lane_index();
  return exchange(value, lane + delta < 32 ? lane + delta : lane, "shuffle_down", at);
#else
  return __shfl_down_sync(0xffffffffu, value, delta);
#endif
}
template <class T>
TSC_DEV T shuffle_from(T value, u32 source TSC_AT) {
  static_assert(sizeof(T) == 4, "shuffles move 4 bytes");
#ifdef TSC_EMU
  return exchange(value, source, "shuffle_from", at);
#else
  return __shfl_sync(0xffffffffu, value, static_cast<int>(source));
#endif
}

// vote.sync (PTX ISA 9.7.13.9): bit l is lane l's predicate.
TSC_DEV u32 warp_ballot(bool predicate TSC_AT) {
#ifdef TSC_EMU
  bool all[32];
  emu::warp_exchange(all, &predicate, sizeof(bool), "warp_ballot", at);
  u32 bits = 0;
  for (u32 lane = 0; lane < 32; lane++) bits |= static_cast<u32>(all[lane]) << lane;
  return bits;
#else
  return __ballot_sync(0xffffffffu, predicate);
#endif
}

// Combiners: `apply` is associative and commutative up to rounding, `identity` its neutral element.
struct Sum {
  template <class T>
  TSC_DEV static T apply(T a, T b) {
    return a + b;
  }
  template <class T>
  TSC_DEV static T identity() {
    return T(0);
  }
};
struct Max {
  template <class T>
  TSC_DEV static T apply(T a, T b) {
    return a > b ? a : b;
  }
  template <class T>
  TSC_DEV static T identity();
};
struct Min {
  template <class T>
  TSC_DEV static T apply(T a, T b) {
    return a < b ? a : b;
  }
  template <class T>
  TSC_DEV static T identity();
};
template <>
TSC_DEV float Max::identity<float>() {
  return bits_float(0xff800000u);
}
template <>
TSC_DEV i32 Max::identity<i32>() {
  return static_cast<i32>(0x80000000u);
}
template <>
TSC_DEV float Min::identity<float>() {
  return bits_float(0x7f800000u);
}
template <>
TSC_DEV i32 Min::identity<i32>() {
  return 0x7fffffff;
}

// The combination of all 32 values, in every lane: a butterfly over lane distances 16, 8, 4, 2, 1, so every lane has the same
// bits.
template <class Op, class T>
TSC_DEV T warp_reduce(T value TSC_AT) {
#ifdef TSC_EMU
  T all[32];
  emu::warp_exchange(all, &value, sizeof(T), "warp_reduce", at);
  for (u32 distance = 16; distance != 0; distance >>= 1)
    for (u32 lane = 0; lane < distance; lane++) all[lane] = Op::apply(all[lane], all[lane + distance]);
  return all[0];
#else
  TSC_UNROLL for (u32 distance = 16; distance != 0; distance >>= 1) value = Op::apply(value, shuffle_xor(value, distance));
  return value;
#endif
}

// The combination of the values of all WARPS * 32 threads of the block, in every thread: warp_reduce, then the warps' values in
// order through `scratch`, WARPS * sizeof(T) bytes of shared memory that no thread touches between the two barriers inside, nor
// before its next barrier.
template <class Op, int WARPS, class T>
TSC_DEV T block_reduce(T value, u32 scratch TSC_AT) {
  const u32 thread = (thread_index().z * block_size().y + thread_index().y) * block_size().x + thread_index().x;
  value = warp_reduce<Op>(value TSC_PASS);
  if constexpr (WARPS == 1) return value;
  if (thread % 32 == 0) store_shared(scratch + thread / 32 * sizeof(T), value TSC_PASS);
  block_sync(TSC_PASS0);
  T total = load_shared<T>(scratch TSC_PASS);
  TSC_UNROLL for (int warp = 1; warp < WARPS; warp++) total =
      Op::apply(total, load_shared<T>(scratch + warp * sizeof(T) TSC_PASS));
  block_sync(TSC_PASS0);
  return total;
}

}  // namespace tsc
