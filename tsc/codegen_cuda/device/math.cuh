// The float functions kernels use. `*_f32` are accurate to the few ulp the CUDA C library states; `fast_*` are single
// instructions (PTX ISA 9.7.3) with about 2^-22 relative error, which the emulator computes accurately.
#pragma once
#include "platform.cuh"

#ifdef TSC_EMU
#include <math.h>
#endif

namespace tsc {

TSC_DEV float exp_f32(float x) { return expf(x); }
TSC_DEV float log_f32(float x) { return logf(x); }
TSC_DEV float sqrt_f32(float x) { return sqrtf(x); }
TSC_DEV float tanh_f32(float x) { return tanhf(x); }
TSC_DEV float erf_f32(float x) { return erff(x); }
TSC_DEV float sin_f32(float x) { return sinf(x); }
TSC_DEV float cos_f32(float x) { return cosf(x); }
TSC_DEV float pow_f32(float x, float y) { return powf(x, y); }
TSC_DEV float floor_f32(float x) { return floorf(x); }
TSC_DEV float ceil_f32(float x) { return ceilf(x); }
TSC_DEV float abs_f32(float x) { return fabsf(x); }
// One rounding (fma.rn.f32).
TSC_DEV float fma_f32(float x, float y, float z) { return fmaf(x, y, z); }

#ifdef TSC_EMU
TSC_DEV float fast_exp2(float x) { return exp2f(x); }
TSC_DEV float fast_log2(float x) { return log2f(x); }
TSC_DEV float fast_reciprocal(float x) { return 1.0f / x; }
TSC_DEV float fast_rsqrt(float x) { return 1.0f / sqrtf(x); }
TSC_DEV float fast_tanh(float x) { return tanhf(x); }
#else
// ex2.approx.ftz, lg2.approx, rcp.approx, rsqrt.approx, tanh.approx (the last with error 2^-11).
TSC_DEV float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TSC_DEV float fast_log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TSC_DEV float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TSC_DEV float fast_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TSC_DEV float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif
TSC_DEV float fast_exp(float x) { return fast_exp2(x * 1.4426950408889634f); }

}  // namespace tsc
