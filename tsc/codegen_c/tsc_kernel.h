/* What every generated kernel includes: the kernel ABI, scalars (tsc_scalar.h), and, for each vector width a kernel asks for
 * (TSC_LANES), vector types and the math functions of tsc_math.h. */
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

/* What rows of a register tile are read from where they are outside of a tensor. */
#define TSC_ZEROS 1024
TSC_UNUSED static const float tsc_zeros_float[TSC_ZEROS] __attribute__((aligned(64)));
TSC_UNUSED static const double tsc_zeros_double[TSC_ZEROS] __attribute__((aligned(64)));
TSC_UNUSED static const int32_t tsc_zeros_int32_t[TSC_ZEROS] __attribute__((aligned(64)));

#define TSC_MATH(FUNCTION, S) __builtin_##FUNCTION##S
#include "tsc_scalar.h"

/* -- halves, which are only stored. A float that is one already keeps its value; others are rounded to the nearest, ties to the
 * even one, and to infinity beyond the range. --------------------------------------------------------------------------------- */

typedef struct {
  uint16_t bits;
} tsc_half;

TSC_FN float tsc_from_half(tsc_half h) {
  const uint32_t sign = (uint32_t)(h.bits & 0x8000) << 16, rest = (uint32_t)(h.bits & 0x7fff) << 13;
  tsc_float_bits number = {.bits = rest}, whole = {.bits = sign | 0x7f800000 | rest};
  if (rest >= 0x0f800000) return whole.value; /* infinite or no number */
  number.value *= 0x1p112f;                   /* the exponents' biases are 15 and 127 */
  number.bits |= sign;
  return number.value;
}
TSC_FN tsc_half tsc_half_of_float(float x) {
  tsc_float_bits number = {.value = x};
  const uint32_t sign = number.bits & 0x80000000;
  number.bits ^= sign;
  uint32_t half;
  if (number.bits >= 0x47800000) { /* 2^16 and more */
    half = number.bits > 0x7f800000 ? 0x7e00 : 0x7c00;
  } else if (number.bits < 0x38800000) { /* less than 2^-14: the sum is rounded to a multiple of 2^-24 */
    number.value += 0.5f;
    half = number.bits - 0x3f000000;
  } else {
    half = (number.bits + 0xfff + (number.bits >> 13 & 1) - (112u << 23)) >> 13;
  }
  return (tsc_half){(uint16_t)(half | sign >> 16)};
}
TSC_FN tsc_half tsc_half_of_double(double x) {
  tsc_float_bits number = {.value = (float)x}; /* rounded to an odd float, it is rounded right afterwards */
  const double back = number.value;
  if (back != x && back == back && x - x == 0) {
    if (__builtin_fabs(back) > __builtin_fabs(x)) number.bits -= 1;
    number.bits |= 1;
  }
  return tsc_half_of_float(number.value);
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

/* Registers as compilers' builtins take them. */
typedef char tsc_chars __attribute__((vector_size(16)));
typedef char tsc_many_chars __attribute__((vector_size(32)));
typedef int tsc_ints __attribute__((vector_size(16)));
typedef short tsc_shorts8 __attribute__((vector_size(16)));
typedef short tsc_shorts16 __attribute__((vector_size(32)));
typedef short tsc_shorts32 __attribute__((vector_size(64)));
typedef long long tsc_longs __attribute__((vector_size(16)));
#if defined __has_builtin
#define TSC_HAS_SHUFFLES __has_builtin(__builtin_shufflevector)
#else
#define TSC_HAS_SHUFFLES 0
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
    if (__builtin_constant_p(first + when) && first == 0 && when) /* the first lanes alone: no edge of an image */            \
      return tsc_load_##NAME##x##L(p, last);                                                                                  \
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
  }                                                                                                                           \
  TSC_FN tsc_##NAME##x##L tsc_accumulate_##NAME##x##L(tsc_##NAME##x##L acc, tsc_##NAME##x##L a, tsc_##NAME##x##L b) {         \
    return acc + a * b;                                                                                                       \
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
#define TSC_DOT_IN_PLACE                                                                                                      \
  I products;                                                                                                                 \
  __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(acc), "=&x"(products) : "x"(a), "x"(b));                          \
  return acc;
#else
#define TSC_FMA_IN_PLACE(V, NAME)
#define TSC_DOT_IN_PLACE
#endif

/* A kernel with register tiles. Where gcc has 16 registers, its pass over instructions that moves what is the same in every trip
 * out of loops costs tiles their registers: sums go by way of memory. What C says is the same is moved all the same. */
#if defined __x86_64__ && !defined __clang__ && !defined __AVX512F__
#define TSC_TILED __attribute__((optimize("no-move-loop-invariants")))
#else
#define TSC_TILED
#endif

/* Two numbers of 16 bits, or four of 8, in one of 32; those that lie next to each other as they do; the sums of the products of
 * two such, of bytes those of a without a sign and those of b with one. */
TSC_FN int32_t tsc_together_at(const void *p) {
  int32_t all;
  return __builtin_memcpy(&all, p, sizeof all), all;
}
TSC_FN int32_t tsc_pair_int32(int32_t low, int32_t high) {
  return (int32_t)((uint32_t)(uint16_t)low | (uint32_t)(uint16_t)high << 16);
}
TSC_FN int32_t tsc_quad_int32(int32_t a, int32_t b, int32_t c, int32_t d) {
  return (int32_t)((uint32_t)(uint8_t)a | (uint32_t)(uint8_t)b << 8 | (uint32_t)(uint8_t)c << 16 | (uint32_t)(uint8_t)d << 24);
}
TSC_FN int32_t tsc_dot_pair_int32(int32_t a, int32_t b) { return (int16_t)a * (int16_t)b + (a >> 16) * (b >> 16); }
TSC_FN int32_t tsc_dot_quad_int32(int32_t a, int32_t b) {
  int32_t sum = 0;
  for (int at = 0; at < 32; at += 8) sum += (uint8_t)(a >> at) * (int8_t)(b >> at);
  return sum;
}

/* The scalar x in every lane: x - 0 is x, signed zeros included. */
#define TSC_SPLAT(V, x) ((x) - (V){0})

/* A lane-wise choice: `mask` lanes are 0 or -1 and as wide as the values. */
#define TSC_BLEND(MASK_T, V, mask, yes, no) ((V)(((mask) & (MASK_T)(yes)) | (~(mask) & (MASK_T)(no))))

#define TSC_LANES 1
#include "tsc_math.h"
#undef TSC_LANES

#endif
