/* What every generated kernel includes: the kernel ABI, integer arithmetic that rounds as the tensor DSL says, and, for each
 * vector width a kernel asks for (TSC_WIDTHS), vector types and the math functions of tsc_math.h. */
#ifndef TSC_KERNEL_H
#define TSC_KERNEL_H

/* No header of the C library: to read those takes longer than to compile most kernels. What is needed of them follows. */
typedef __INT8_TYPE__ int8_t;
typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t;
typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t;
typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t;
typedef __UINT64_TYPE__ uint64_t;
#ifndef INT64_MIN
#define INT32_MIN (-__INT32_MAX__ - 1)
#define INT64_MIN (-__INT64_MAX__ - 1)
#define INT64_C(c) c##L
#define UINT64_C(c) c##UL
#endif
_Static_assert(sizeof(long) == sizeof(int64_t), "INT64_C and UINT64_C make longs");

typedef struct {
  void *const *buffers;
  const int64_t *sizes;
} tsc_args;

#define TSC_UNUSED __attribute__((unused))
#define TSC_FN TSC_UNUSED static inline __attribute__((always_inline))

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
  TSC_DEFINE_INTEGER(T, U, NAME)

#define TSC_DEFINE_UNSIGNED(T, NAME)                                                                                          \
  TSC_FN T tsc_div_##NAME(T a, T b) { return b == 0 ? 0 : (T)(a / b); }                                                       \
  TSC_FN T tsc_fmod_##NAME(T a, T b) { return b == 0 ? 0 : (T)(a % b); }                                                      \
  TSC_FN T tsc_floordiv_##NAME(T a, T b) { return tsc_div_##NAME(a, b); }                                                     \
  TSC_FN T tsc_mod_##NAME(T a, T b) { return tsc_fmod_##NAME(a, b); }                                                         \
  TSC_FN T tsc_abs_##NAME(T a) { return a; }                                                                                  \
  TSC_FN T tsc_sign_##NAME(T a) { return a > 0; }                                                                             \
  TSC_DEFINE_INTEGER(T, T, NAME)

#define TSC_DEFINE_INTEGER(T, U, NAME)                                                                                        \
  TSC_FN T tsc_min_##NAME(T a, T b) { return a < b ? a : b; }                                                                 \
  TSC_FN T tsc_max_##NAME(T a, T b) { return a > b ? a : b; }                                                                 \
  TSC_FN T tsc_reciprocal_##NAME(T a) { return tsc_div_##NAME((T)1, a); }                                                     \
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

/* -- floats. gcc 12 takes 0.0 + -x and 0.0 - x for -x, and -(a * b + c) for -a * b - c, wrong where the result is 0: it is not
 * shown that a zero is one, nor what it is that is negated --------------------------------------------------------------- */

#if defined(__x86_64__)
#define TSC_FLOAT_REGISTER "x"
#elif defined(__aarch64__)
#define TSC_FLOAT_REGISTER "w"
#else
#define TSC_FLOAT_REGISTER "m"
#endif

#define TSC_DEFINE_FLOAT(T, NAME, S)                                                                                          \
  TSC_FN T tsc_min_##NAME(T a, T b) { return a < b || a != a ? a : b; }                                                       \
  TSC_FN T tsc_max_##NAME(T a, T b) { return a > b || a != a ? a : b; }                                                       \
  TSC_FN T tsc_abs_##NAME(T a) { return __builtin_fabs##S(a); }                                                               \
  TSC_FN T tsc_zero_##NAME(void) {                                                                                            \
    T zero = 0;                                                                                                               \
    __asm__("" : "+" TSC_FLOAT_REGISTER(zero));                                                                               \
    return zero;                                                                                                              \
  }                                                                                                                           \
  TSC_FN T tsc_neg_##NAME(T a) {                                                                                              \
    __asm__("" : "+" TSC_FLOAT_REGISTER(a));                                                                                  \
    return -a;                                                                                                                \
  }                                                                                                                           \
  TSC_FN T tsc_sign_##NAME(T a) { return a != a ? a : (T)((a > 0) - (a < 0)); }                                               \
  TSC_FN T tsc_reciprocal_##NAME(T a) { return 1 / a; }                                                                       \
  TSC_FN T tsc_sqrt_##NAME(T a) { return __builtin_sqrt##S(a); }                                                              \
  TSC_FN T tsc_pow_##NAME(T a, T b) { return __builtin_pow##S(a, b); }                                                        \
  TSC_FN T tsc_sin_##NAME(T a) { return __builtin_sin##S(a); }                                                                \
  TSC_FN T tsc_cos_##NAME(T a) { return __builtin_cos##S(a); }                                                                \
  TSC_FN T tsc_fmod_##NAME(T a, T b) { return __builtin_fmod##S(a, b); }                                                      \
  TSC_FN T tsc_mod_##NAME(T a, T b) {                                                                                         \
    T r = __builtin_fmod##S(a, b);                                                                                            \
    return r != 0 ? ((r < 0) != (b < 0) ? r + b : r) : __builtin_copysign##S((T)0, b);                                        \
  }                                                                                                                           \
  TSC_FN T tsc_floordiv_##NAME(T a, T b) { return __builtin_floor##S(a / b); }

TSC_DEFINE_FLOAT(float, float32, f)
TSC_DEFINE_FLOAT(double, float64, )

/* a * b + c is rounded once on every machine that can, and twice on others. It is no choice of a compiler's (-ffp-contract=off):
 * an expression gives the same bits in whatever loop it stands. */
#if defined __FMA__ || defined __ARM_FEATURE_FMA
#define TSC_HAS_FMA 1
#define TSC_FMA(S, a, b, c) __builtin_fma##S(a, b, c)
#else
#define TSC_HAS_FMA 0
#define TSC_FMA(S, a, b, c) ((a) * (b) + (c))
#endif
TSC_FN float tsc_fma_float32(float a, float b, float c) { return TSC_FMA(f, a, b, c); }
TSC_FN double tsc_fma_float64(double a, double b, double c) { return TSC_FMA(, a, b, c); }

TSC_FN double tsc_exp_float64(double x) { return __builtin_exp(x); }
TSC_FN double tsc_log_float64(double x) { return __builtin_log(x); }
TSC_FN double tsc_erf_float64(double x) { return __builtin_erf(x); }
TSC_FN double tsc_tanh_float64(double x) { return __builtin_tanh(x); }
TSC_FN double tsc_floor_float64(double x) { return __builtin_floor(x); }
TSC_FN double tsc_ceil_float64(double x) { return __builtin_ceil(x); }
TSC_FN double tsc_round_float64(double x) { return __builtin_rint(x); }

/* C leaves a float open that no integer of the type equals; here it is what te/intrinsics.py says (`converted`). */
TSC_FN int32_t tsc_to_int32(double x) { return x > -0x1p31 - 1 && x < 0x1p31 ? (int32_t)x : INT32_MIN; }
TSC_FN int64_t tsc_to_int64(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }
TSC_FN uint32_t tsc_to_uint32(double x) {
  return x >= 0x1p31 ? (uint32_t)tsc_to_int32(x - 0x1p31) ^ (uint32_t)INT32_MIN : (uint32_t)tsc_to_int32(x);
}
TSC_FN uint64_t tsc_to_uint64(double x) {
  return x >= 0x1p63 ? (uint64_t)tsc_to_int64(x - 0x1p63) ^ (uint64_t)INT64_MIN : (uint64_t)tsc_to_int64(x);
}

/* -- vectors ---------------------------------------------------------------------------------------------------------------- */

#define TSC_JOIN2(a, b) a##b
#define TSC_JOIN(a, b) TSC_JOIN2(a, b)

/* The first n of L floats in memory, or those from `first` up to `last`; the other lanes are zero, and their memory is not
 * touched. `evens`: lane l is p[2 * l]; two ranges of memory, then the even lanes of both. AVX2 has masked stores too, but AMD's
 * Zen 3 takes longer over one than over a store for each lane. The address sanitizer sees no masks: it gets lanes one by one. */
#ifndef __has_feature
#define __has_feature(x) 0
#endif
#ifndef __has_builtin
#define __has_builtin(x) 0
#endif
#if defined __SANITIZE_ADDRESS__ || __has_feature(address_sanitizer)
#define TSC_SEEN_BY_LANE 1
#else
#define TSC_SEEN_BY_LANE 0
#endif
#define TSC_MASKS(L, HAS)                                                                                                     \
  enum { TSC_HAS_MASKS_##L = HAS };                                                                                           \
  typedef int32_t tsc_where##L __attribute__((vector_size(4 * L)));                                                           \
  typedef float tsc_bits##L __attribute__((vector_size(4 * L)));
#ifdef __clang__
#define TSC_CHOSEN(L, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else /* which has the other one from version 12 on */
#define TSC_CHOSEN(L, a, b, ...) __builtin_shuffle(a, b, (tsc_where##L){__VA_ARGS__})
#endif
#define TSC_NO_MASKS(L)                                                                                                       \
  TSC_MASKS(L, 0)                                                                                                             \
  TSC_FN tsc_bits##L tsc_masked_load##L(const void *p, int64_t n) { return (tsc_bits##L){0}; }                                \
  TSC_FN tsc_bits##L tsc_masked_range##L(const void *p, int64_t a, int64_t b, int64_t when) { return (tsc_bits##L){0}; }      \
  TSC_FN tsc_bits##L tsc_masked_evens##L(const float *p, int64_t a, int64_t b, int64_t when) { return (tsc_bits##L){0}; }

TSC_NO_MASKS(2)
#if defined __AVX512F__ && !TSC_SEEN_BY_LANE
TSC_MASKS(16, 1)
TSC_FN tsc_bits16 tsc_masked_load16(const void *p, int64_t n) {
  return __builtin_ia32_loadups512_mask(p, (tsc_bits16){0}, (unsigned short)((1u << n) - 1));
}
TSC_FN uint32_t tsc_lanes_below(int64_t n) { return (1u << (n < 0 ? 0 : n > 16 ? 16 : n)) - 1; }
TSC_FN tsc_bits16 tsc_masked_range16(const void *p, int64_t first, int64_t last, int64_t when) {
  uint32_t mask = tsc_lanes_below(last) & ~tsc_lanes_below(first) & (0 - (uint32_t)when);
  return __builtin_ia32_loadups512_mask(p, (tsc_bits16){0}, (unsigned short)mask);
}
TSC_FN tsc_bits16 tsc_masked_evens16(const float *p, int64_t first, int64_t last, int64_t when) {
  tsc_bits16 a = tsc_masked_range16(p, 2 * first, 2 * last - 1, when);
  tsc_bits16 b = tsc_masked_range16(p + 16, 2 * first - 16, 2 * last - 17, when);
  return TSC_CHOSEN(16, a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
TSC_FN void tsc_masked_store16(void *p, int64_t n, tsc_bits16 v) {
  __builtin_ia32_storeups512_mask(p, v, (unsigned short)((1u << n) - 1));
}
#else
TSC_NO_MASKS(16)
TSC_FN void tsc_masked_store16(void *p, int64_t n, tsc_bits16 v) {}
#endif

#if defined __AVX2__ && !TSC_SEEN_BY_LANE
#define TSC_LANE_MASKS(L, SUFFIX)                                                                                             \
  TSC_MASKS(L, 1)                                                                                                             \
  TSC_FN tsc_where##L tsc_lanes_below##L(int64_t n) {                                                                         \
    return TSC_IOTA_##L < (int32_t)(n < 0 ? 0 : n > L ? L : n) - (tsc_where##L){0};                                           \
  }                                                                                                                           \
  TSC_FN tsc_bits##L tsc_masked_load##L(const void *p, int64_t n) {                                                           \
    return __builtin_ia32_maskloadps##SUFFIX(p, tsc_lanes_below##L(n));                                                       \
  }                                                                                                                           \
  TSC_FN tsc_bits##L tsc_masked_range##L(const void *p, int64_t first, int64_t last, int64_t when) {                          \
    tsc_where##L mask = tsc_lanes_below##L(when ? last : 0) & ~tsc_lanes_below##L(first);                                     \
    return __builtin_ia32_maskloadps##SUFFIX(p, mask);                                                                        \
  }
#define TSC_IOTA_4 ((tsc_where4){0, 1, 2, 3})
#define TSC_IOTA_8 ((tsc_where8){0, 1, 2, 3, 4, 5, 6, 7})
TSC_LANE_MASKS(4, )
TSC_LANE_MASKS(8, 256)
TSC_FN tsc_bits4 tsc_masked_evens4(const float *p, int64_t first, int64_t last, int64_t when) {
  tsc_bits4 a = tsc_masked_range4(p, 2 * first, 2 * last - 1, when);
  tsc_bits4 b = tsc_masked_range4(p + 4, 2 * first - 4, 2 * last - 5, when);
  return TSC_CHOSEN(4, a, b, 0, 2, 4, 6);
}
TSC_FN tsc_bits8 tsc_masked_evens8(const float *p, int64_t first, int64_t last, int64_t when) {
  tsc_bits8 a = tsc_masked_range8(p, 2 * first, 2 * last - 1, when);
  tsc_bits8 b = tsc_masked_range8(p + 8, 2 * first - 8, 2 * last - 9, when);
  return TSC_CHOSEN(8, a, b, 0, 2, 4, 6, 8, 10, 12, 14);
}
#else
TSC_NO_MASKS(4)
TSC_NO_MASKS(8)
#endif

#define TSC_DEFINE_VECTOR(T, NAME, L)                                                                                         \
  typedef T tsc_##NAME##x##L __attribute__((vector_size(L * sizeof(T))));                                                     \
  typedef T tsc_##NAME##x##L##u __attribute__((vector_size(L * sizeof(T)), aligned(sizeof(T)), may_alias));                   \
  TSC_FN tsc_##NAME##x##L tsc_load_##NAME##x##L(const T *p, int64_t n) {                                                      \
    if (TSC_HAS_MASKS_##L && sizeof(T) == 4) {                                                                                \
      tsc_bits##L r = tsc_masked_load##L(p, n);                                                                               \
      tsc_##NAME##x##L v;                                                                                                     \
      return __builtin_memcpy(&v, &r, sizeof v), v;                                                                           \
    }                                                                                                                         \
    tsc_##NAME##x##L r = {0};                                                                                                 \
    for (int l = 0; l < L; l++) r[l] = l < n ? p[l] : 0;                                                                      \
    return r;                                                                                                                 \
  }                                                                                                                           \
  /* At an edge; no part of its callers, where it would stand often and compilers take long over its branches. */             \
  TSC_UNUSED static __attribute__((noinline)) tsc_##NAME##x##L tsc_edge_##NAME##x##L(                                         \
      const T *p, int64_t space, int64_t first, int64_t last, int64_t when) {                                                 \
    if (TSC_HAS_MASKS_##L && sizeof(T) == 4 && space <= 2) {                                                                  \
      tsc_bits##L r = space == 1 ? tsc_masked_range##L(p, first, last, when)                                                  \
                                 : tsc_masked_evens##L((const float *)p, first, last, when);                                  \
      tsc_##NAME##x##L v;                                                                                                     \
      return __builtin_memcpy(&v, &r, sizeof v), v;                                                                           \
    }                                                                                                                         \
    tsc_##NAME##x##L r = {0};                                                                                                 \
    for (int l = 0; l < L; l++) r[l] = when && l >= first && l < last ? p[l * space] : 0;                                     \
    return r;                                                                                                                 \
  }                                                                                                                           \
  TSC_FN tsc_##NAME##x##L tsc_range_##NAME##x##L(const T *p, int64_t first, int64_t last, int64_t when) {                     \
    if (TSC_HAS_MASKS_##L && sizeof(T) == 4 && L == 16) {                                                                     \
      tsc_bits##L r = tsc_masked_range##L(p, first, last, when);                                                              \
      tsc_##NAME##x##L v;                                                                                                     \
      return __builtin_memcpy(&v, &r, sizeof v), v;                                                                           \
    }                                                                                                                         \
    if (first > 0 || last < L || !when) return tsc_edge_##NAME##x##L(p, 1, first, last, when);                                \
    return *(const tsc_##NAME##x##L##u *)p;                                                                                   \
  }                                                                                                                           \
  TSC_FN tsc_##NAME##x##L tsc_spaced_##NAME##x##L(const T *p, int64_t space, int64_t first, int64_t last, int64_t when) {     \
    const int masks = TSC_HAS_MASKS_##L && sizeof(T) == 4 && space == 2;                                                      \
    if ((!masks || L < 16) && (first > 0 || last < L || !when))                                                               \
      return tsc_edge_##NAME##x##L(p, space, first, last, when);                                                              \
    if (masks) {                                                                                                              \
      tsc_bits##L r = L < 16 ? tsc_masked_evens##L((const float *)p, 0, L, 1)                                                 \
                             : tsc_masked_evens##L((const float *)p, first, last, when);                                      \
      tsc_##NAME##x##L v;                                                                                                     \
      return __builtin_memcpy(&v, &r, sizeof v), v;                                                                           \
    }                                                                                                                         \
    tsc_##NAME##x##L r = {0};                                                                                                 \
    for (int l = 0; l < L; l++) r[l] = p[l * space];                                                                          \
    return r;                                                                                                                 \
  }                                                                                                                           \
  TSC_FN tsc_##NAME##x##L tsc_twice_##NAME##x##L(const T *p) {                                                                \
    tsc_##NAME##x##L r = {0};                                                                                                 \
    for (int l = 0; l < L; l++) r[l] = p[l / 2];                                                                              \
    return r;                                                                                                                 \
  }                                                                                                                           \
  TSC_FN void tsc_store_##NAME##x##L(T *p, int64_t n, tsc_##NAME##x##L v) {                                                   \
    if (TSC_HAS_MASKS_16 && sizeof(T) == 4 && L == 16) {                                                                      \
      tsc_bits16 r;                                                                                                           \
      __builtin_memcpy(&r, &v, sizeof v);                                                                                     \
      tsc_masked_store16(p, n, r);                                                                                            \
      return;                                                                                                                 \
    }                                                                                                                         \
    for (int l = 0; l < L; l++)                                                                                               \
      if (l < n) p[l] = v[l];                                                                                                 \
  }

#define TSC_DEFINE_VECTORS(L)                                                                                                 \
  TSC_DEFINE_VECTOR(float, float32, L)                                                                                        \
  TSC_DEFINE_VECTOR(double, float64, L)                                                                                       \
  TSC_DEFINE_VECTOR(int8_t, int8, L)                                                                                          \
  TSC_DEFINE_VECTOR(int16_t, int16, L)                                                                                        \
  TSC_DEFINE_VECTOR(int32_t, int32, L)                                                                                        \
  TSC_DEFINE_VECTOR(int64_t, int64, L)                                                                                        \
  TSC_DEFINE_VECTOR(uint8_t, uint8, L)                                                                                        \
  TSC_DEFINE_VECTOR(uint16_t, uint16, L)                                                                                      \
  TSC_DEFINE_VECTOR(uint32_t, uint32, L)                                                                                      \
  TSC_DEFINE_VECTOR(uint64_t, uint64, L)                                                                                      \
  TSC_DEFINE_VECTOR(uint8_t, bool, L)                                                                                         \
  TSC_DEFINE_VECTOR_ORDER(int32, L)                                                                                           \
  TSC_DEFINE_VECTOR_ORDER(int64, L)                                                                                           \
  TSC_DEFINE_VECTOR_FMA(float32, L)                                                                                           \
  TSC_DEFINE_VECTOR_FMA(float64, L)

#define TSC_DEFINE_VECTOR_ORDER(NAME, L)                                                                                      \
  TSC_FN tsc_##NAME##x##L tsc_min_##NAME##x##L(tsc_##NAME##x##L a, tsc_##NAME##x##L b) {                                      \
    return TSC_BLEND(tsc_##NAME##x##L, tsc_##NAME##x##L, a < b, a, b);                                                        \
  }                                                                                                                           \
  TSC_FN tsc_##NAME##x##L tsc_max_##NAME##x##L(tsc_##NAME##x##L a, tsc_##NAME##x##L b) {                                      \
    return TSC_BLEND(tsc_##NAME##x##L, tsc_##NAME##x##L, a > b, a, b);                                                        \
  }

#define TSC_DEFINE_VECTOR_FMA(NAME, L)                                                                                        \
  TSC_FN tsc_##NAME##x##L tsc_fma_##NAME##x##L(tsc_##NAME##x##L a, tsc_##NAME##x##L b, tsc_##NAME##x##L c) {                  \
    TSC_VECTOR_FMA(tsc_##NAME##x##L, NAME)                                                                                    \
  }                                                                                                                           \
  TSC_FN tsc_##NAME##x##L tsc_accumulate_##NAME##x##L(tsc_##NAME##x##L acc, tsc_##NAME##x##L a, tsc_##NAME##x##L b) {         \
    TSC_FMA_IN_PLACE(tsc_##NAME##x##L, NAME)                                                                                  \
    return tsc_fma_##NAME##x##L(a, b, acc);                                                                                   \
  }
#if !TSC_HAS_FMA
#define TSC_VECTOR_FMA(V, NAME) return a * b + c;
#elif __has_builtin(__builtin_elementwise_fma)
#define TSC_VECTOR_FMA(V, NAME) return __builtin_elementwise_fma(a, b, c);
#elif defined __x86_64__ /* by whole registers: compilers do not put lanes together again */
#define TSC_DEFINE_FMA_OF(T, NAME, BYTES, CALL)                                                                               \
  typedef T tsc_##NAME##_by##BYTES __attribute__((vector_size(BYTES)));                                                       \
  TSC_FN tsc_##NAME##_by##BYTES tsc_fma_##NAME##_by##BYTES(                                                                   \
      tsc_##NAME##_by##BYTES a, tsc_##NAME##_by##BYTES b, tsc_##NAME##_by##BYTES c) { return CALL; }
#ifdef __AVX512F__
TSC_DEFINE_FMA_OF(float, float32, 64, __builtin_ia32_vfmaddps512_mask(a, b, c, 0xffff, 4))
TSC_DEFINE_FMA_OF(double, float64, 64, __builtin_ia32_vfmaddpd512_mask(a, b, c, 0xff, 4))
#define TSC_FMA_BY_64(V, NAME) TSC_FMA_BY(V, NAME, 64)
#else
#define TSC_FMA_BY_64(V, NAME)
#endif
TSC_DEFINE_FMA_OF(float, float32, 32, __builtin_ia32_vfmaddps256(a, b, c))
TSC_DEFINE_FMA_OF(double, float64, 32, __builtin_ia32_vfmaddpd256(a, b, c))
TSC_DEFINE_FMA_OF(float, float32, 16, __builtin_ia32_vfmaddps(a, b, c))
TSC_DEFINE_FMA_OF(double, float64, 16, __builtin_ia32_vfmaddpd(a, b, c))
#define TSC_FMA_BY(V, NAME, BYTES)                                                                                            \
  if (sizeof(V) % BYTES == 0) {                                                                                               \
    union { V whole; tsc_##NAME##_by##BYTES part[(sizeof(V) + BYTES - 1) / BYTES]; } x = {a}, y = {b}, z = {c};               \
    for (unsigned i = 0; i < sizeof(V) / BYTES; i++)                                                                          \
      z.part[i] = tsc_fma_##NAME##_by##BYTES(x.part[i], y.part[i], z.part[i]);                                                \
    return z.whole;                                                                                                           \
  }
#define TSC_VECTOR_FMA(V, NAME)                                                                                               \
  TSC_FMA_BY_64(V, NAME) TSC_FMA_BY(V, NAME, 32) TSC_FMA_BY(V, NAME, 16) TSC_FMA_LANES(V, NAME)
#else
#define TSC_VECTOR_FMA(V, NAME) TSC_FMA_LANES(V, NAME)
#endif
#define TSC_FMA_LANES(V, NAME)                                                                                                \
  for (unsigned l = 0; l < sizeof(V) / sizeof(c[0]); l++) c[l] = tsc_fma_##NAME(a[l], b[l], c[l]);                            \
  return c;

/* acc + a * b in a register tile. Of 16 registers gcc likes to spend those of accumulators on products, and keeps sums in memory
 * instead: here the result stays where acc is. */
#if TSC_HAS_FMA && defined __x86_64__ && !defined __clang__ && !defined __AVX512F__
#define TSC_FMA_NAME_float32 "vfmadd231ps"
#define TSC_FMA_NAME_float64 "vfmadd231pd"
#define TSC_FMA_IN_PLACE(V, NAME)                                                                                             \
  if (sizeof(V) == 16 || sizeof(V) == 32) {                                                                                   \
    __asm__(TSC_FMA_NAME_##NAME " %1, %2, %0" : "+x"(acc) : "x"(a), "x"(b));                                                  \
    return acc;                                                                                                               \
  }
#else
#define TSC_FMA_IN_PLACE(V, NAME)
#endif

/* A kernel with register tiles. Where gcc has 16 registers, its pass over instructions that moves what is the same in every trip
 * out of loops costs tiles their registers: sums go by way of memory. What C says is the same is moved all the same. */
#if defined __x86_64__ && !defined __clang__ && !defined __AVX512F__
#define TSC_TILED __attribute__((optimize("no-move-loop-invariants")))
#else
#define TSC_TILED
#endif

/* The scalar x in every lane: x - 0 is x, signed zeros included. */
#define TSC_SPLAT(V, x) ((x) - (V){0})

/* A lane-wise choice: `mask` lanes are 0 or -1 and as wide as the values. */
#define TSC_BLEND(MASK_T, V, mask, yes, no) ((V)(((mask) & (MASK_T)(yes)) | (~(mask) & (MASK_T)(no))))

#define TSC_LANES 1
#include "tsc_math.h"
#undef TSC_LANES

#endif
