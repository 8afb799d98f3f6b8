// What generated kernels compute with, beyond the primitives: the scalars of codegen_c/tsc_scalar.h, which CPUs' kernels have too,
// and accesses whose index comes from data.
#pragma once
#include "atomic.cuh"
#include "math.cuh"
#include "memory.cuh"

namespace tsc {

// As the C library of 64-bit Linux has them, whose own names may stand beside these.
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;

#ifndef INT64_C
#define INT64_C(c) c##L
#define UINT64_C(c) c##UL
#endif
#ifndef INT64_MIN
#define INT32_MIN (-2147483647 - 1)
#define INT64_MIN (-9223372036854775807L - 1)
#endif

// A machine's own fma is there on every GPU.
#define TSC_FMA_ANYWAY
#define TSC_FN TSC_DEV
#define TSC_MATH(FUNCTION, S) FUNCTION##S
#ifndef TSC_EMU
#define tsc_max_float32 tsc_greater_float32
#define tsc_min_float32 tsc_less_float32
#endif
#include "tsc_scalar.h"
#ifndef TSC_EMU
#undef tsc_max_float32
#undef tsc_min_float32
// One instruction; of zeros with different signs one with that sign which the other functions may not give.
TSC_DEV float tsc_max_float32(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
TSC_DEV float tsc_min_float32(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
#endif
#undef TSC_MATH
#undef TSC_FN

TSC_DEV float tsc_exp_float32(float x) { return exp_f32(x); }
TSC_DEV float tsc_log_float32(float x) { return log_f32(x); }
TSC_DEV float tsc_erf_float32(float x) { return erf_f32(x); }
TSC_DEV float tsc_tanh_float32(float x) { return tanh_f32(x); }
TSC_DEV float tsc_floor_float32(float x) { return floor_f32(x); }
TSC_DEV float tsc_ceil_float32(float x) { return ceil_f32(x); }
TSC_DEV float tsc_round_float32(float x) { return rintf(x); }
TSC_DEV float tsc_tf32_float32(float x) { return bits_float(float_bits(x) & 0xffffe000u); }

// The nearest half of a double: by way of an odd float, which lies on the same side of all in the middle between two halves.
TSC_DEV f16 to_f16(double value) {
  const double near = static_cast<float>(value);
  u32 bits = float_bits(static_cast<float>(value));
  if (near != value && value - value == 0) bits = (bits - ((near < 0 ? -near : near) > (value < 0 ? -value : value))) | 1u;
  return to_f16(bits_float(bits));
}

// number % SIZE, as one number: a compiler that takes it apart puts its parts into every address that it is in.
template <u32 SIZE>
TSC_DEV u32 remainder(u32 number) {
  u32 rest = number % SIZE;
#ifndef TSC_EMU
  asm("" : "+r"(rest));
#endif
  return rest;
}

// A number of 64 bits as one of 32, which is between -(2^30) and 2^30: as good in a comparison with such numbers.
TSC_DEV int32_t clipped(int64_t x) {
  const int64_t most = int64_t(1) << 30;
  return static_cast<int32_t>(x > most ? most : x < -most ? -most : x);
}

// condition ? yes : no, of which a compiler does not make two ways for threads to go.
TSC_DEV float chosen(bool condition, float yes, float no) {
#ifdef TSC_EMU
  return condition ? yes : no;
#else
  float x;
  asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; selp.f32 %0, %1, %2, p; }" : "=f"(x) : "f"(yes), "f"(no), "r"(int(condition)));
  return x;
#endif
}

// An index from data, counted from the end where it is negative. Where it is not within `extent`, `outside` becomes true, the
// launch's status is at least `code`, and the index is 0, at which `load_inside` reads nothing: threads that wait for each other
// must all go on.
TSC_DEV int64_t checked_index(int64_t index, int64_t extent, u32 code, u32* status, bool& outside TSC_AT) {
  if (index < 0) index += extent;
  if (static_cast<uint64_t>(index) < static_cast<uint64_t>(extent)) return index;
  atomic_max(status, code TSC_PASS);
  outside = true;
  return 0;
}
template <class T>
TSC_DEV T load_inside(const T* source, int64_t place, const bool& outside TSC_AT) {
  return load_constant_or_zero(source + (outside ? 0 : place), !outside TSC_PASS);
}

}  // namespace tsc
