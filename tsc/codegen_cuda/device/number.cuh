// fp16, bf16 and tf32 without cuda_fp16.h: bit patterns with a type, and conversions that round as the hardware does.
#pragma once
#include "platform.cuh"

namespace tsc {

// IEEE binary16.
struct f16 {
  u16 bits;
};
// bfloat16: the upper half of a binary32.
struct bf16 {
  u16 bits;
};
// binary32 whose lower 13 mantissa bits are zero (what tf32 mma reads); only names a type, values live in u32 registers.
struct tf32 {
  u32 bits;
};

// cvt.rn.f16.f32 / cvt.rn.bf16.f32 (PTX ISA 9.7.9.21 cvt): nearest, ties to even; every NaN becomes 0x7fff.
TSC_DEV f16 to_f16(float value) {
#ifdef TSC_EMU
  return {emu::f16_from_float(value)};
#else
  f16 out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
  return out;
#endif
}
TSC_DEV bf16 to_bf16(float value) {
#ifdef TSC_EMU
  return {emu::bf16_from_float(value)};
#else
  bf16 out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
  return out;
#endif
}

// cvt.rna.tf32.f32: nearest, ties away from zero; the bits go into an mma fragment as they are. The bits of a NaN are the
// hardware's: an H200 clears the lower 13.
TSC_DEV u32 to_tf32(float value) {
#ifdef TSC_EMU
  return emu::tf32_from_float(value);
#else
  u32 out;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(out) : "f"(value));
  return out;
#endif
}

// Exact; every NaN becomes 0x7fffffff.
TSC_DEV float to_float(f16 value) {
#ifdef TSC_EMU
  return emu::float_from_f16(value.bits);
#else
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(value.bits));
  return out;
#endif
}
TSC_DEV float to_float(bf16 value) {
  union {
    u32 bits;
    float value;
  } word = {static_cast<u32>(value.bits) << 16};
  return word.value;
}
TSC_DEV float to_float(float value) { return value; }

// The same bits under another type.
TSC_DEV u32 float_bits(float value) {
  union {
    float value;
    u32 bits;
  } word = {value};
  return word.bits;
}
TSC_DEV float bits_float(u32 bits) {
  union {
    u32 bits;
    float value;
  } word = {bits};
  return word.value;
}

// Two 16-bit numbers in one register, `low` in bits 0 to 15 (cvt.rn.f16x2.f32, cvt.rn.bf16x2.f32): rounded as to_f16 and
// to_bf16.
TSC_DEV u32 pack_f16(float low, float high) {
#ifdef TSC_EMU
  return emu::f16_from_float(low) | static_cast<u32>(emu::f16_from_float(high)) << 16;
#else
  u32 out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#endif
}
TSC_DEV u32 pack_bf16(float low, float high) {
#ifdef TSC_EMU
  return emu::bf16_from_float(low) | static_cast<u32>(emu::bf16_from_float(high)) << 16;
#else
  u32 out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
#endif
}

// Conversion by type: Convert<T>::from(float) -> T; Convert<T>::pack(low, high) -> u32 for the 16-bit types.
template <class T>
struct Convert;
template <>
struct Convert<float> {
  TSC_DEV static float from(float value) { return value; }
};
template <>
struct Convert<f16> {
  TSC_DEV static f16 from(float value) { return to_f16(value); }
  TSC_DEV static u32 pack(float low, float high) { return pack_f16(low, high); }
  TSC_DEV static float low(u32 pair) { return to_float(f16{static_cast<u16>(pair)}); }
  TSC_DEV static float high(u32 pair) { return to_float(f16{static_cast<u16>(pair >> 16)}); }
};
template <>
struct Convert<bf16> {
  TSC_DEV static bf16 from(float value) { return to_bf16(value); }
  TSC_DEV static u32 pack(float low, float high) { return pack_bf16(low, high); }
  TSC_DEV static float low(u32 pair) { return bits_float(pair << 16); }
  TSC_DEV static float high(u32 pair) { return bits_float(pair & 0xffff0000u); }
};

}  // namespace tsc
