// Rounding of the narrow float types, bit for bit as cvt does it.
#include <string.h>

#include "../device/platform.cuh"

namespace tsc::emu {

namespace {
u32 bits_of(float value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  return bits;
}
}  // namespace

u16 f16_from_float(float value) {
  const u32 bits = bits_of(value);
  const u32 sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000)
    return static_cast<u16>(sign | 0x7c00);  // at or above the middle between the largest f16 and 2^16
  if (magnitude >= 0x38800000) {             // normal in f16
    const u32 rebased = magnitude - (112u << 23);
    return static_cast<u16>(sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
  }
  if (magnitude < 0x33000000) return static_cast<u16>(sign);  // below half the smallest subnormal
  const u32 mantissa = (magnitude & 0x7fffff) | 0x800000, shift = 126 - (magnitude >> 23);
  const u32 kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), half = 1u << (shift - 1);
  return static_cast<u16>(sign | (kept + (rest > half || (rest == half && (kept & 1)))));
}

float float_from_f16(u16 bits) {
  const u32 sign = static_cast<u32>(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
  float value;
  u32 out;
  if (exponent == 31) {
    out = mantissa != 0 ? 0x7fffffff : sign | 0x7f800000;  // every NaN becomes this one (seen on an H200)
  } else if (exponent != 0) {
    out = sign | (exponent + 112) << 23 | mantissa << 13;
  } else {
    const float small = static_cast<float>(mantissa) * 0x1p-24f;
    out = sign | bits_of(small);
  }
  memcpy(&value, &out, 4);
  return value;
}

u16 bf16_from_float(float value) {
  const u32 bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

u32 tf32_from_float(float value) {
  const u32 bits = bits_of(value);
  if ((bits & 0x7fffffff) >= 0x7f800000) return bits & 0xffffe000;  // so an H200; by the PTX ISA a NaN may have other bits
  return (bits + 0x1000) & 0xffffe000;
}

}  // namespace tsc::emu
