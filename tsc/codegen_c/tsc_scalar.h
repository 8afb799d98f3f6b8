/* Scalars in generated code, for CPUs and GPUs alike: arithmetic that rounds as the tensor DSL says. Whoever includes it has the
 * integer types, TSC_FN (a function of its own), and TSC_MATH(F, S): function F of the C library, for floats where S is f. */
#ifndef TSC_SCALAR_H
#define TSC_SCALAR_H

/* -- integers: floor division as in Python, truncating division as in C; dividing by zero gives zero, never a trap -------- */

#define TSC_DEFINE_SIGNED(T, U, NAME)                                                                                         \
  TSC_FN T tsc_div_##NAME(T a, T b) { return b == 0 ? 0 : b == -1 ? (T)(0 - (U)a) : (T)(a / b); }                             \
  TSC_FN T tsc_fmod_##NAME(T a, T b) { return b == 0 || b == -1 ? 0 : (T)(a % b); }                                           \
  TSC_FN T tsc_floordiv_##NAME(T a, T b) {                                                                                    \
    T q = tsc_div_##NAME(a, b), r = tsc_fmod_##NAME(a, b);                                                                    \
    return (T)(q - (r != 0 && (r < 0) != (b < 0)));                                                                           \
  }                                                                                                                           \
  TSC_FN T tsc_mod_##NAME(T a, T b) {                                                                                         \
    T r = tsc_fmod_##NAME(a, b);                                                                                              \
    return (T)(r != 0 && (r < 0) != (b < 0) ? r + b : r);                                                                     \
  }                                                                                                                           \
  TSC_FN T tsc_abs_##NAME(T a) { return a < 0 ? (T)(0 - (U)a) : a; }                                                          \
  TSC_FN T tsc_sign_##NAME(T a) { return (T)((a > 0) - (a < 0)); }                                                            \
  TSC_FN T tsc_shr_##NAME(T a, T b) { return (T)(a >> ((U)b < sizeof(T) * 8 ? (int)b : (int)sizeof(T) * 8 - 1)); }            \
  TSC_DEFINE_INTEGER(T, U, NAME)

#define TSC_DEFINE_UNSIGNED(T, NAME)                                                                                          \
  TSC_FN T tsc_div_##NAME(T a, T b) { return b == 0 ? 0 : (T)(a / b); }                                                       \
  TSC_FN T tsc_fmod_##NAME(T a, T b) { return b == 0 ? 0 : (T)(a % b); }                                                      \
  TSC_FN T tsc_floordiv_##NAME(T a, T b) { return tsc_div_##NAME(a, b); }                                                     \
  TSC_FN T tsc_mod_##NAME(T a, T b) { return tsc_fmod_##NAME(a, b); }                                                         \
  TSC_FN T tsc_abs_##NAME(T a) { return a; }                                                                                  \
  TSC_FN T tsc_sign_##NAME(T a) { return a > 0; }                                                                             \
  TSC_FN T tsc_shr_##NAME(T a, T b) { return b < sizeof(T) * 8 ? (T)(a >> b) : (T)0; }                                        \
  TSC_DEFINE_INTEGER(T, T, NAME)

#define TSC_DEFINE_INTEGER(T, U, NAME)                                                                                        \
  TSC_FN T tsc_min_##NAME(T a, T b) { return a < b ? a : b; }                                                                 \
  TSC_FN T tsc_max_##NAME(T a, T b) { return a > b ? a : b; }                                                                 \
  TSC_FN T tsc_reciprocal_##NAME(T a) { return tsc_div_##NAME((T)1, a); }                                                     \
  /* by a number of bits that the type does not have all are shifted out */                                                   \
  TSC_FN T tsc_shl_##NAME(T a, T b) { return (uint64_t)b < sizeof(T) * 8 ? (T)((uint64_t)a << b) : (T)0; }                    \
  TSC_FN T tsc_pow_##NAME(T a, T b) {                                                                                         \
    U result = 1, base = (U)a;                                                                                                \
    if (b < 0) return a == 1 ? 1 : a == (T)-1 ? (b & 1 ? (T)-1 : 1) : 0;                                                      \
    for (; b > 0; b >>= 1, base *= base) result *= b & 1 ? base : 1;                                                          \
    return (T)result;                                                                                                         \
  }

TSC_DEFINE_SIGNED(int8_t, unsigned, int8)
TSC_DEFINE_SIGNED(int16_t, unsigned, int16)
TSC_DEFINE_SIGNED(int32_t, uint32_t, int32)
TSC_DEFINE_SIGNED(int64_t, uint64_t, int64)
TSC_DEFINE_UNSIGNED(uint8_t, uint8)
TSC_DEFINE_UNSIGNED(uint16_t, uint16)
TSC_DEFINE_UNSIGNED(uint32_t, uint32)
TSC_DEFINE_UNSIGNED(uint64_t, uint64)
TSC_DEFINE_UNSIGNED(uint8_t, bool)

/* -- bits of one type as numbers of another ------------------------------------------------------------------------------ */

#define TSC_DEFINE_BITS(F, U, FLOAT, UNSIGNED, NAME)                                                                          \
  typedef union {                                                                                                             \
    F value;                                                                                                                  \
    U bits;                                                                                                                   \
  } NAME;                                                                                                                     \
  TSC_FN U tsc_as_##UNSIGNED##_##FLOAT(F x) {                                                                                 \
    NAME number;                                                                                                              \
    number.value = x;                                                                                                         \
    return number.bits;                                                                                                       \
  }                                                                                                                           \
  TSC_FN F tsc_as_##FLOAT##_##UNSIGNED(U x) {                                                                                 \
    NAME number;                                                                                                              \
    number.bits = x;                                                                                                          \
    return number.value;                                                                                                      \
  }

TSC_DEFINE_BITS(float, uint32_t, float32, uint32, tsc_float_bits)
TSC_DEFINE_BITS(double, uint64_t, float64, uint64, tsc_double_bits)

/* A bfloat16 is the upper half of a float, rounded to the nearest, ties to the even one; what is no number stays none. */
TSC_FN float tsc_from_bfloat_uint16(uint16_t x) { return tsc_as_float32_uint32((uint32_t)x << 16); }
TSC_FN uint16_t tsc_to_bfloat_float32(float x) {
  const uint32_t whole = tsc_as_uint32_float32(x);
  return (uint16_t)(x != x ? 0x7fc0 : (whole + 0x7fff + (whole >> 16 & 1)) >> 16);
}

/* -- floats. gcc 12 takes 0.0 + -x and 0.0 - x for -x, and -(a * b + c) for -a * b - c, wrong where the result is 0: it is not
 * shown that a zero is one, nor what it is that is negated --------------------------------------------------------------- */

#if defined(__CUDACC_RTC__)
#define TSC_HIDDEN(x) (void)(x)
#elif defined(__x86_64__)
#define TSC_HIDDEN(x) __asm__("" : "+x"(x))
#elif defined(__aarch64__)
#define TSC_HIDDEN(x) __asm__("" : "+w"(x))
#else
#define TSC_HIDDEN(x) __asm__("" : "+m"(x))
#endif

#define TSC_DEFINE_FLOAT(T, NAME, S)                                                                                          \
  TSC_FN T tsc_min_##NAME(T a, T b) { return a < b || a != a ? a : b; }                                                       \
  TSC_FN T tsc_max_##NAME(T a, T b) { return a > b || a != a ? a : b; }                                                       \
  TSC_FN T tsc_abs_##NAME(T a) { return TSC_MATH(fabs, S)(a); }                                                               \
  TSC_FN T tsc_zero_##NAME(void) {                                                                                            \
    T zero = 0;                                                                                                               \
    TSC_HIDDEN(zero);                                                                                                         \
    return zero;                                                                                                              \
  }                                                                                                                           \
  TSC_FN T tsc_neg_##NAME(T a) {                                                                                              \
    TSC_HIDDEN(a);                                                                                                            \
    return -a;                                                                                                                \
  }                                                                                                                           \
  TSC_FN T tsc_sign_##NAME(T a) { return a != a ? a : (T)((a > 0) - (a < 0)); }                                               \
  TSC_FN T tsc_reciprocal_##NAME(T a) { return 1 / a; }                                                                       \
  TSC_FN T tsc_sqrt_##NAME(T a) { return TSC_MATH(sqrt, S)(a); }                                                              \
  TSC_FN T tsc_pow_##NAME(T a, T b) { return TSC_MATH(pow, S)(a, b); }                                                        \
  TSC_FN T tsc_sin_##NAME(T a) { return TSC_MATH(sin, S)(a); }                                                                \
  TSC_FN T tsc_cos_##NAME(T a) { return TSC_MATH(cos, S)(a); }                                                                \
  TSC_FN T tsc_fmod_##NAME(T a, T b) { return TSC_MATH(fmod, S)(a, b); }                                                      \
  TSC_FN T tsc_mod_##NAME(T a, T b) {                                                                                         \
    T r = TSC_MATH(fmod, S)(a, b);                                                                                            \
    return r != 0 ? ((r < 0) != (b < 0) ? r + b : r) : TSC_MATH(copysign, S)((T)0, b);                                        \
  }                                                                                                                           \
  TSC_FN T tsc_floordiv_##NAME(T a, T b) { return TSC_MATH(floor, S)(a / b); }

TSC_DEFINE_FLOAT(float, float32, f)
TSC_DEFINE_FLOAT(double, float64, )

/* a * b + c is rounded once on every machine that can, and twice on others. It is no choice of a compiler's (-ffp-contract=off):
 * an expression gives the same bits in whatever loop it stands. */
#if defined __FMA__ || defined __ARM_FEATURE_FMA || defined TSC_FMA_ANYWAY
#define TSC_HAS_FMA 1
#define TSC_FMA(S, a, b, c) TSC_MATH(fma, S)(a, b, c)
#else
#define TSC_HAS_FMA 0
#define TSC_FMA(S, a, b, c) ((a) * (b) + (c))
#endif
TSC_FN float tsc_fma_float32(float a, float b, float c) { return TSC_FMA(f, a, b, c); }
TSC_FN double tsc_fma_float64(double a, double b, double c) { return TSC_FMA(, a, b, c); }

TSC_FN double tsc_exp_float64(double x) { return TSC_MATH(exp, )(x); }
TSC_FN double tsc_log_float64(double x) { return TSC_MATH(log, )(x); }
TSC_FN double tsc_erf_float64(double x) { return TSC_MATH(erf, )(x); }
TSC_FN double tsc_tanh_float64(double x) { return TSC_MATH(tanh, )(x); }
TSC_FN double tsc_floor_float64(double x) { return TSC_MATH(floor, )(x); }
TSC_FN double tsc_ceil_float64(double x) { return TSC_MATH(ceil, )(x); }
TSC_FN double tsc_round_float64(double x) { return TSC_MATH(rint, )(x); }

/* C leaves a float open that no integer of the type equals; here it is what te/intrinsics.py says (`converted`). */
TSC_FN int32_t tsc_to_int32(double x) { return x > -0x1p31 - 1 && x < 0x1p31 ? (int32_t)x : INT32_MIN; }
TSC_FN int64_t tsc_to_int64(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }
TSC_FN uint32_t tsc_to_uint32(double x) {
  return x >= 0x1p31 ? (uint32_t)tsc_to_int32(x - 0x1p31) ^ (uint32_t)INT32_MIN : (uint32_t)tsc_to_int32(x);
}
TSC_FN uint64_t tsc_to_uint64(double x) {
  return x >= 0x1p63 ? (uint64_t)tsc_to_int64(x - 0x1p63) ^ (uint64_t)INT64_MIN : (uint64_t)tsc_to_int64(x);
}

#endif
