// wgmma (sm_90a): matrix products of a warp group, asynchronous, from shared memory. Also its registers' reallocation.
//
// A warp group is 4 consecutive warps, the first a multiple of 4. Its four warps hold 16 rows each: a lane holds
// (PTX ISA 9.7.15.5), with w = warp % 4, g = lane / 4, t = lane % 4 and row = 16 w + g,
//   D  d[4 j], d[4 j + 1]: row, columns 8 j + 2 t, 8 j + 2 t + 1          d[4 j + 2], d[4 j + 3]: the same of row + 8
//   A  (in registers) a[0]: row, bytes 4 t .. 4 t + 3     a[1]: row + 8     a[2], a[3]: the same at bytes 16 + 4 t
// One instruction takes 32 bytes along k: 16 numbers of f16 or bf16, 8 of tf32, 32 of int8.
//
// Operands in shared memory are described by 64 bits (9.7.15.5.1.2):
//   bits 0..13 address / 16     16..29 leading offset / 16     32..45 stride offset / 16     49..51 base offset (0 here)
//   62..63 swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes
// SPAN being the swizzle's bytes, x the row of A or column of B, these are the places before the swizzle, which permutes
// addresses as the copy engine does (swizzled, in tma.cuh):
//   k-major,  SPAN 0:  x / 8 * stride + x % 8 * 16 + kbyte / 16 * leading + kbyte % 16
//   k-major,  SPAN:    x / 8 * stride + x % 8 * SPAN + kbyte                                  (leading unused)
//   mn-major, SPAN 0:  x / 8 * stride + x % 8 * 2 + k / 8 * leading + k % 8 * 16
//   mn-major, SPAN:    x / (SPAN / 2) * leading + x % (SPAN / 2) * 2 + k / 8 * stride + k % 8 * SPAN
// So a box that TMA loaded with that swizzle is an operand: k-major where its innermost axis is k, with stride 8 SPAN;
// mn-major where that axis is x. Tiles begin at multiples of 8 SPAN; the i-th step along a k-major tile, 32 i bytes on,
// stays within the span.
#pragma once
#include "mma.cuh"
#include "wgmma_operands.cuh"

namespace tsc {

// Descriptor of the operand at window address `address`, SPAN-byte swizzled; see above.
template <u32 SPAN>
TSC_DEV constexpr u64 wgmma_descriptor(u32 address, u32 leading_bytes, u32 stride_bytes) {
  static_assert(SPAN == 0 || SPAN == 32 || SPAN == 64 || SPAN == 128, "wgmma swizzles within 32, 64 or 128 bytes");
  constexpr u64 mode = SPAN == 0 ? 0 : SPAN == 128 ? 1 : SPAN == 64 ? 2 : 3;
  return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>((leading_bytes & 0x3ffff) >> 4) << 16 |
         static_cast<u64>((stride_bytes & 0x3ffff) >> 4) << 32 | mode << 62;
}

// The same operand `bytes` (a multiple of 16) further on.
TSC_DEV constexpr u64 wgmma_advance(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

// Order this warp group's earlier accesses to the registers of accumulators and of A before the wgmma that follow
// (wgmma.fence, 9.7.15.7.1): before the first, and whenever such registers were touched since; not between those that
// accumulate into the same registers.
TSC_DEV void wgmma_fence(TSC_AT0) {
#ifdef TSC_EMU
  emu::wgmma_fence(at);
#else
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Close the warp group's open group of wgmma (wgmma.commit_group, 9.7.15.7.2).
TSC_DEV void wgmma_commit(TSC_AT0) {
#ifdef TSC_EMU
  emu::wgmma_commit(at);
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Wait until at most PENDING of the newest groups are under way (wgmma.wait_group, 9.7.15.7.3): only then may the registers of
// the others be touched, and their shared memory be written again.
template <int PENDING>
TSC_DEV void wgmma_wait(TSC_AT0) {
  static_assert(0 <= PENDING && PENDING <= 7, "wgmma.wait_group counts to 7");
#ifdef TSC_EMU
  emu::wgmma_wait(PENDING, at);
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
#endif
}

// Keep the compiler from moving accesses to `d` across this place. An asm statement that does not name a register does not hold
// them back, so this stands after a wait, before the accumulators are read, and before a fence, after they were written.
template <int REGISTERS>
TSC_DEV void wgmma_pin(float (&d)[REGISTERS]) {
#ifdef TSC_EMU
  (void)d;
#else
  TSC_UNROLL for (int i = 0; i < REGISTERS; i++) asm volatile("" : "+f"(d[i])::"memory");
#endif
}
template <int REGISTERS>
TSC_DEV void wgmma_pin(i32 (&d)[REGISTERS]) {
#ifdef TSC_EMU
  (void)d;
#else
  TSC_UNROLL for (int i = 0; i < REGISTERS; i++) asm volatile("" : "+r"(d[i])::"memory");
#endif
}

// Which N an instruction of type T can have.
template <class T>
TSC_DEV constexpr bool wgmma_has(int n) {
  return n % 8 == 0 && 8 <= n && n <= 256 && (MmaType<T>::KIND < 3 || n <= 32 || n % 16 == 0);
}

#ifndef TSC_EMU
#define TSC_START(predicate) "{\n.reg .pred keep;\nsetp.ne.b32 keep, %" predicate ", 0;\nwgmma.mma_async.sync.aligned.m64n"
#define TSC_INPUTS_SS : "l"(a), "l"(b), "r"(static_cast<u32>(accumulate))
#define TSC_INPUTS_RS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<u32>(accumulate))
#define TSC_SS_16(shape, n, r, p0, p1, p2, p3, p4, p5, p6)                                                        \
  if constexpr (N == n)                                                                                           \
    asm volatile(TSC_START(p2) #n shape " {" TSC_TEXT_##r "}, %" p0 ", %" p1 ", keep, 1, 1, %" p3 ", %" p4 ";\n}" \
                 : TSC_BIND_##r("+f") TSC_INPUTS_SS, "n"(A_MN ? 1 : 0), "n"(B_MN ? 1 : 0));
#define TSC_SS_TF(n, r, p0, p1, p2, p3, p4, p5, p6)                                                       \
  if constexpr (N == n)                                                                                   \
    asm volatile(TSC_START(p2) #n "k8.f32.tf32.tf32 {" TSC_TEXT_##r "}, %" p0 ", %" p1 ", keep, 1, 1;\n}" \
                 : TSC_BIND_##r("+f") TSC_INPUTS_SS);
#define TSC_SS_8(shape, n, r, p0, p1, p2, p3, p4, p5, p6) \
  if constexpr (N == n)                                   \
    asm volatile(TSC_START(p2) #n shape " {" TSC_TEXT_##r "}, %" p0 ", %" p1 ", keep;\n}" : TSC_BIND_##r("+r") TSC_INPUTS_SS);
#define TSC_RS_16(shape, n, r, p0, p1, p2, p3, p4, p5, p6)                                                                     \
  if constexpr (N == n)                                                                                                        \
    asm volatile(TSC_START(p5) #n shape " {" TSC_TEXT_##r "}, {%" p0 ", %" p1 ", %" p2 ", %" p3 "}, %" p4 ", keep, 1, 1, %" p6 \
                                                          ";\n}"                                                               \
                 : TSC_BIND_##r("+f") TSC_INPUTS_RS, "n"(B_MN ? 1 : 0));
#define TSC_RS_TF(n, r, p0, p1, p2, p3, p4, p5, p6)                                                                 \
  if constexpr (N == n)                                                                                             \
    asm volatile(TSC_START(p5) #n "k8.f32.tf32.tf32 {" TSC_TEXT_##r "}, {%" p0 ", %" p1 ", %" p2 ", %" p3 "}, %" p4 \
                                                                    ", keep, 1, 1;\n}"                              \
                 : TSC_BIND_##r("+f") TSC_INPUTS_RS);
#define TSC_RS_8(shape, n, r, p0, p1, p2, p3, p4, p5, p6)                                                              \
  if constexpr (N == n)                                                                                                \
    asm volatile(TSC_START(p5) #n shape " {" TSC_TEXT_##r "}, {%" p0 ", %" p1 ", %" p2 ", %" p3 "}, %" p4 ", keep;\n}" \
                 : TSC_BIND_##r("+r") TSC_INPUTS_RS);
#define TSC_SS_F16(...)  TSC_SS_16("k16.f32.f16.f16", __VA_ARGS__)
#define TSC_SS_BF16(...) TSC_SS_16("k16.f32.bf16.bf16", __VA_ARGS__)
#define TSC_SS_S8(...)   TSC_SS_8("k32.s32.s8.s8", __VA_ARGS__)
#define TSC_SS_U8(...)   TSC_SS_8("k32.s32.u8.u8", __VA_ARGS__)
#define TSC_RS_F16(...)  TSC_RS_16("k16.f32.f16.f16", __VA_ARGS__)
#define TSC_RS_BF16(...) TSC_RS_16("k16.f32.bf16.bf16", __VA_ARGS__)
#define TSC_RS_S8(...)   TSC_RS_8("k32.s32.s8.s8", __VA_ARGS__)
#define TSC_RS_U8(...)   TSC_RS_8("k32.s32.u8.u8", __VA_ARGS__)
#endif

// D = A B, or D += A B where `accumulate`: 64 rows, N columns, 32 bytes of k (wgmma.mma_async, 9.7.15.5.2), A and B in shared
// memory. All 128 threads call it with the same descriptors. A_MN and B_MN say that the operand is mn-major, which only f16 and
// bf16 can be. T, sums and integer overflow are as in mma_tile; N is a multiple of 8 to 256, for integers beyond 32 a multiple
// of 16.
template <class T, int N, bool A_MN = false, bool B_MN = false>
TSC_DEV void wgmma(typename MmaType<T>::Accumulator (&d)[N / 2], u64 a, u64 b, bool accumulate = true TSC_AT) {
  constexpr int KIND = MmaType<T>::KIND;
  static_assert(wgmma_has<T>(N), "wgmma has no such N");
  static_assert(KIND < 2 || !(A_MN || B_MN), "only f16 and bf16 operands can be mn-major");
#ifdef TSC_EMU
  emu::wgmma(d, nullptr, a, b, accumulate, N, KIND, A_MN, B_MN, at);
#else
  if constexpr (KIND == 0) {
    TSC_WGMMA_SIZES(TSC_SS_F16)
  } else if constexpr (KIND == 1) {
    TSC_WGMMA_SIZES(TSC_SS_BF16)
  } else if constexpr (KIND == 2) {
    TSC_WGMMA_SIZES(TSC_SS_TF)
  } else if constexpr (KIND == 3) {
    TSC_WGMMA_SIZES(TSC_SS_S8)
  } else {
    TSC_WGMMA_SIZES(TSC_SS_U8)
  }
#endif
}

// The same with A in registers, which stay untouched until the group is waited for.
template <class T, int N, bool B_MN = false>
TSC_DEV void wgmma(typename MmaType<T>::Accumulator (&d)[N / 2], const u32 (&a)[4], u64 b, bool accumulate = true TSC_AT) {
  constexpr int KIND = MmaType<T>::KIND;
  static_assert(wgmma_has<T>(N), "wgmma has no such N");
  static_assert(KIND < 2 || !B_MN, "only f16 and bf16 operands can be mn-major");
#ifdef TSC_EMU
  emu::wgmma(d, a, 0, b, accumulate, N, KIND, false, B_MN, at);
#else
  if constexpr (KIND == 0) {
    TSC_WGMMA_SIZES(TSC_RS_F16)
  } else if constexpr (KIND == 1) {
    TSC_WGMMA_SIZES(TSC_RS_BF16)
  } else if constexpr (KIND == 2) {
    TSC_WGMMA_SIZES(TSC_RS_TF)
  } else if constexpr (KIND == 3) {
    TSC_WGMMA_SIZES(TSC_RS_S8)
  } else {
    TSC_WGMMA_SIZES(TSC_RS_U8)
  }
#endif
}

// An operand of the products of several steps of k: where its first element is in the shared window, how it is swizzled, and
// its offsets in bytes as above.
template <u32 SPAN, bool MN>
struct WgmmaOperand {
  u32 address, leading, stride;
};

// D += A B for STEPS steps of k, which begin so many bytes behind the operands' first elements, and wait for it: 64 rows of A,
// N columns of B. What was written to shared memory is fenced for it before the barrier in front of it.
template <class T, int N, int STEPS, u32 A_SPAN, bool A_MN, u32 B_SPAN, bool B_MN>
TSC_DEV void wgmma_steps(typename MmaType<T>::Accumulator (&d)[N / 2], const WgmmaOperand<A_SPAN, A_MN>& a, const u32 (&a_steps)[STEPS],
                         const WgmmaOperand<B_SPAN, B_MN>& b, const u32 (&b_steps)[STEPS]) {
  const u64 first_a = wgmma_descriptor<A_SPAN>(a.address, a.leading, a.stride);
  const u64 first_b = wgmma_descriptor<B_SPAN>(b.address, b.leading, b.stride);
  wgmma_pin(d);
  wgmma_fence();
  TSC_UNROLL for (int step = 0; step < STEPS; step++)
    wgmma<T, N, A_MN, B_MN>(d, wgmma_advance(first_a, a_steps[step]), wgmma_advance(first_b, b_steps[step]));
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(d);
}

// Change how many registers each thread of this warp has (setmaxnreg, 9.7.19.5): all warps of a warp group do so together,
// producers down, then consumers up, COUNT a multiple of 8 from 24 to 256. The sum over the block must stay what the launch
// gave it.
template <int COUNT>
TSC_DEV void registers_increase(TSC_AT0) {
  static_assert(24 <= COUNT && COUNT <= 256 && COUNT % 8 == 0, "setmaxnreg takes a multiple of 8 from 24 to 256");
#ifdef TSC_EMU
  emu::set_registers(COUNT, true, at);
#else
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
template <int COUNT>
TSC_DEV void registers_decrease(TSC_AT0) {
  static_assert(24 <= COUNT && COUNT <= 256 && COUNT % 8 == 0, "setmaxnreg takes a multiple of 8 from 24 to 256");
#ifdef TSC_EMU
  emu::set_registers(COUNT, false, at);
#else
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

}  // namespace tsc
