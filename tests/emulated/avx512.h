/* AVX-512 for the headers of generated C on a machine with AVX2: what they ask of the compiler by name, in halves of 32 bytes or
 * lane by lane. Masked lanes are not touched. Vectors of 64 bytes are gcc's and clang's own, on any machine. Meanings are those
 * of Intel's Software Developer's Manual, volume 2: VMOVUPS, VFMADD213PS, VMAXPS, VSCALEFPS. */
#define __AVX512F__ 1

#define EMULATED __attribute__((unused, always_inline)) static inline
typedef float emulated_float8 __attribute__((vector_size(32)));
typedef double emulated_double4 __attribute__((vector_size(32)));
typedef float emulated_float16 __attribute__((vector_size(64)));
typedef double emulated_double8 __attribute__((vector_size(64)));
typedef float emulated_float1 __attribute__((aligned(1), may_alias));
typedef union { emulated_float16 whole; emulated_float8 half[2]; } emulated_floats;
typedef union { emulated_double8 whole; emulated_double4 half[2]; } emulated_doubles;

#ifdef __clang__
#define EMULATED_FMA(kind) __builtin_elementwise_fma
#else
#define EMULATED_FMA(kind) __builtin_ia32_vfmadd##kind##256
#endif

EMULATED emulated_float16 emulated_load(const void *p, emulated_float16 other, unsigned short mask) {
  for (int l = 0; l < 16; l++)
    if (mask >> l & 1) other[l] = ((const emulated_float1 *)p)[l];
  return other;
}

EMULATED void emulated_store(void *p, emulated_float16 v, unsigned short mask) {
  for (int l = 0; l < 16; l++)
    if (mask >> l & 1) ((emulated_float1 *)p)[l] = v[l];
}

EMULATED emulated_float16 emulated_fma_floats(emulated_float16 a, emulated_float16 b, emulated_float16 c) {
  emulated_floats x = {a}, y = {b}, z = {c};
  for (int h = 0; h < 2; h++) z.half[h] = EMULATED_FMA(ps)(x.half[h], y.half[h], z.half[h]);
  return z.whole;
}

EMULATED emulated_double8 emulated_fma_doubles(emulated_double8 a, emulated_double8 b, emulated_double8 c) {
  emulated_doubles x = {a}, y = {b}, z = {c};
  for (int h = 0; h < 2; h++) z.half[h] = EMULATED_FMA(pd)(x.half[h], y.half[h], z.half[h]);
  return z.whole;
}

EMULATED emulated_float16 emulated_max(emulated_float16 a, emulated_float16 b) {
  emulated_floats x = {a}, y = {b};
  for (int h = 0; h < 2; h++) x.half[h] = __builtin_ia32_maxps256(x.half[h], y.half[h]);
  return x.whole;
}

EMULATED emulated_float16 emulated_min(emulated_float16 a, emulated_float16 b) {
  emulated_floats x = {a}, y = {b};
  for (int h = 0; h < 2; h++) x.half[h] = __builtin_ia32_minps256(x.half[h], y.half[h]);
  return x.whole;
}

/* To whole numbers: to the even where two are as near (8), below (9), above (10). */
EMULATED emulated_float16 emulated_rounded(emulated_float16 p, int how) {
  emulated_floats x = {p};
  for (int h = 0; h < 2; h++)
    x.half[h] = how == 8   ? __builtin_ia32_roundps256(x.half[h], 8)
                : how == 9 ? __builtin_ia32_roundps256(x.half[h], 9)
                           : __builtin_ia32_roundps256(x.half[h], 10);
  return x.whole;
}

/* p * 2^n, rounded once: in double both factors and the product are exact. Lanes of n are whole; beyond 1000 in either direction
 * no float is left but 0 and infinity. */
EMULATED emulated_float16 emulated_scale(emulated_float16 p, emulated_float16 n) {
  for (int l = 0; l < 16; l++) {
    long long power = (long long)(n[l] < -1000 ? -1000 : n[l] > 1000 ? 1000 : n[l]) + 1023 << 52;
    double factor;
    __builtin_memcpy(&factor, &power, sizeof factor);
    p[l] = (float)((double)p[l] * factor);
  }
  return p;
}

typedef char emulated_char16 __attribute__((vector_size(16)));
typedef int emulated_int16 __attribute__((vector_size(64)));
EMULATED emulated_int16 emulated_wide(emulated_char16 v, int bits) {
  emulated_int16 r;
  for (int l = 0; l < 16; l++) r[l] = (signed char)v[l] & bits;
  return r;
}

EMULATED emulated_char16 emulated_low(emulated_int16 v) {
  emulated_char16 r;
  for (int l = 0; l < 16; l++) r[l] = (char)v[l];
  return r;
}

EMULATED emulated_int16 emulated_whole(emulated_float16 v) {
  emulated_int16 r;
  for (int l = 0; l < 16; l++) r[l] = v[l] >= -0x1p31f && v[l] < 0x1p31f ? (int)v[l] : -2147483647 - 1;
  return r;
}

#define __builtin_ia32_cvttps2dq512_mask(v, other, mask, rounding) emulated_whole(v)
#define __builtin_ia32_pmovzxbd512_mask(v, other, mask) emulated_wide(v, 255)
#define __builtin_ia32_pmovsxbd512_mask(v, other, mask) emulated_wide(v, -1)
#define __builtin_ia32_pmovdb512_mask(v, other, mask) emulated_low(v)
#define __builtin_ia32_loadups512_mask(p, other, mask) emulated_load(p, other, mask)
#define __builtin_ia32_storeups512_mask(p, v, mask) emulated_store(p, v, mask)
#define __builtin_ia32_vfmaddps512_mask(a, b, c, mask, rounding) emulated_fma_floats(a, b, c)
#define __builtin_ia32_vfmaddpd512_mask(a, b, c, mask, rounding) emulated_fma_doubles(a, b, c)
#define __builtin_ia32_maxps512_mask(a, b, other, mask, rounding) emulated_max(a, b)
#define __builtin_ia32_minps512_mask(a, b, other, mask, rounding) emulated_min(a, b)
#define __builtin_ia32_scalefps512_mask(p, n, other, mask, rounding) emulated_scale(p, n)
#define __builtin_ia32_rndscaleps_mask(p, how, other, mask, rounding) emulated_rounded(p, how)
#define __builtin_ia32_maxps512(a, b, rounding) emulated_max(a, b)
#define __builtin_ia32_minps512(a, b, rounding) emulated_min(a, b)
