/* Math functions on TSC_LANES floats at once, one definition for the scalar (TSC_LANES 1) and every vector width. This file is
 * included once a width. Accuracy is 1 to 2 units in the last place; infinities, NaN, signed zeros and denormals come out right.
 * The polynomials are weighted minimax fits (Lawson's iteration) made for this file. */

#if TSC_LANES == 1
#define F float
#define I int32_t
#define FN(name) tsc_##name##_float32
#else
TSC_DEFINE_VECTORS(TSC_LANES)
#define F TSC_JOIN(tsc_float32x, TSC_LANES)
#define I TSC_JOIN(tsc_int32x, TSC_LANES)
#define FN(name) TSC_JOIN(tsc_##name##_float32x, TSC_LANES)
#endif

#define FMA FN(fma)
#define K(c) ((F){0} + (c))
#define HORNER(p, x, c) FMA(p, x, K(c))
#define BITS FN(bits)
#define FLOAT FN(float)
#define PICK FN(pick)

#if TSC_LANES == 1
TSC_FN I BITS(F x) { I i; __builtin_memcpy(&i, &x, sizeof i); return i; }
TSC_FN F FLOAT(I i) { F x; __builtin_memcpy(&x, &i, sizeof x); return x; }
TSC_FN F PICK(I mask, F yes, F no) { return mask ? yes : no; }
#define MASK(condition) (-(I)(condition))
#else
TSC_FN I BITS(F x) { return (I)x; }
TSC_FN F FLOAT(I i) { return (F)i; }
TSC_FN F PICK(I mask, F yes, F no) { return TSC_BLEND(I, F, mask, yes, no); }
#define MASK(condition) ((I)(condition))
#endif

/* a > b ? a : b and a < b ? a : b, so that b is returned where either is no number. */
#if TSC_LANES == 16 && defined __AVX512F__ && defined __clang__
TSC_FN F FN(larger)(F a, F b) { return __builtin_ia32_maxps512(a, b, 4); }
TSC_FN F FN(smaller)(F a, F b) { return __builtin_ia32_minps512(a, b, 4); }
#elif TSC_LANES == 16 && defined __AVX512F__
TSC_FN F FN(larger)(F a, F b) { return __builtin_ia32_maxps512_mask(a, b, a, 0xffff, 4); }
TSC_FN F FN(smaller)(F a, F b) { return __builtin_ia32_minps512_mask(a, b, a, 0xffff, 4); }
#elif TSC_LANES == 8 && defined __AVX__
TSC_FN F FN(larger)(F a, F b) { return __builtin_ia32_maxps256(a, b); }
TSC_FN F FN(smaller)(F a, F b) { return __builtin_ia32_minps256(a, b); }
#elif TSC_LANES == 4 && defined __SSE__
TSC_FN F FN(larger)(F a, F b) { return __builtin_ia32_maxps(a, b); }
TSC_FN F FN(smaller)(F a, F b) { return __builtin_ia32_minps(a, b); }
#else
TSC_FN F FN(larger)(F a, F b) { return PICK(MASK(a > b), a, b); }
TSC_FN F FN(smaller)(F a, F b) { return PICK(MASK(a < b), a, b); }
#endif

TSC_FN F FN(exp_parts)(F x, I *n) {
  /* e^x = 2^n * e^f with n = round(x / ln 2), |f| <= ln 2 / 2; e^f is returned. */
  F t = HORNER(x, K(1.44269504f), 12582912.0f);
  F r = t - 12582912.0f;
  F f = FMA(r, K(2.12194440e-4f), FMA(r, K(-0.693359375f), x));
  F p = HORNER(K(1.381455996e-03f), f, 8.368735756e-03f);
  p = HORNER(p, f, 4.166838987e-02f);
  p = HORNER(p, f, 1.666652048e-01f);
  p = HORNER(p, f, 4.999999344e-01f);
  *n = BITS(t) - 0x4B400000;
  return FMA(p, f * f, f) + 1.0f;
}

TSC_FN F FN(exp)(F x) {
  /* 2^n in one instruction that knows denormal and infinite results, else in two factors. */
  F z = FN(larger)(K(-104.0f), FN(smaller)(K(89.0f), x));
  I n;
  F p = FN(exp_parts)(z, &n);
#if TSC_LANES == 16 && defined __AVX512F__
  return __builtin_ia32_scalefps512_mask(p, __builtin_convertvector(n, F), p, 0xffff, 4);
#else
  I half = n >> 1;
  return p * FLOAT((half + 127) << 23) * FLOAT((n - half + 127) << 23);
#endif
}

TSC_FN F FN(exp_bounded)(F x) {
  /* |x| <= 87, where the result is a normal number. */
  I n;
  F p = FN(exp_parts)(x, &n);
  return FLOAT(BITS(p) + (n << 23));
}

TSC_FN F FN(log)(F x) {
  /* x = 2^e * (1 + m) with 1 + m in [sqrt 1/2, sqrt 2). */
  I tiny = MASK(x < 1.17549435e-38f);
  F y = PICK(tiny, x * 8388608.0f, x);
  I i = BITS(y);
  I e = ((i >> 23) & 0xff) - 126 - (tiny & 23);
  F m = FLOAT((i & 0x007fffff) | 0x3f000000);
  I low = MASK(m < 0.707106781f);
  e = e + low;
  m = PICK(low, m + m, m) - 1.0f;
  F p = HORNER(K(-7.634503102e-02f), m, 1.276158734e-01f);
  p = HORNER(p, m, -1.316018483e-01f);
  p = HORNER(p, m, 1.420175680e-01f);
  p = HORNER(p, m, -1.662335699e-01f);
  p = HORNER(p, m, 2.000122691e-01f);
  p = HORNER(p, m, -2.500082104e-01f);
  p = HORNER(p, m, 3.333333171e-01f);
  F s = m * m;
#if TSC_LANES == 1
  F k = (F)e;
#else
  F k = __builtin_convertvector(e, F);
#endif
  F result = FMA(k, K(-2.12194440e-4f), p * m * s);
  result = FMA(k, K(0.693359375f), FMA(s, K(-0.5f), result) + m);
  result = PICK(MASK(x == __builtin_inff()), x, result);
  result = PICK(MASK(x == 0.0f), K(-__builtin_inff()), result);
  return PICK(MASK(x < 0.0f) | MASK(x != x), K(__builtin_nanf("")), result);
}

TSC_FN F FN(erf)(F x) {
  F a = FLOAT(BITS(x) & 0x7fffffff), s = x * x;
  /* |x| < 0.925: x + x * P(x^2). */
  F p = HORNER(K(-5.953759781e-04f), s, 4.985945314e-03f);
  p = HORNER(p, s, -2.676172432e-02f);
  p = HORNER(p, s, 1.128168272e-01f);
  p = HORNER(p, s, -3.761248113e-01f);
  p = HORNER(p, s, 1.283791477e-01f);
  F near = FMA(p, x, x);
  /* beyond: 1 - e^(-|x| Q(|x|)), where erf is 1 from 4 on. */
  F b = PICK(MASK(a > 4.0f), K(4.0f), a);
  F q = HORNER(K(-2.135320855e-04f), b, 3.211311321e-03f);
  q = HORNER(q, b, -2.287859149e-02f);
  q = HORNER(q, b, 1.052446339e-01f);
  q = HORNER(q, b, 6.357309510e-01f);
  q = HORNER(q, b, 1.128510756e+00f);
  F far = 1.0f - FN(exp_bounded)(-b * q);
  far = FLOAT(BITS(far) | (BITS(x) & (int32_t)0x80000000));
  return PICK(MASK(a < 0.925f) | MASK(x != x), near, far);
}

TSC_FN F FN(tanh)(F x) {
  F a = FLOAT(BITS(x) & 0x7fffffff), s = x * x;
  F p = HORNER(K(-5.583421208e-03f), s, 2.053196817e-02f);
  p = HORNER(p, s, -5.370755160e-02f);
  p = HORNER(p, s, 1.333106712e-01f);
  p = HORNER(p, s, -3.333326860e-01f);
  F near = FMA(p * s, x, x);
  F b = PICK(MASK(a > 10.0f), K(10.0f), a);
  F far = 1.0f - 2.0f / (FN(exp_bounded)(b + b) + 1.0f);
  F either = PICK(MASK(a < 0.625f) | MASK(x != x), near, far);
  return FLOAT(BITS(either) | (BITS(x) & (int32_t)0x80000000));
}

/* To an integer: even where two are as near, below, above. */
#if TSC_LANES == 16 && defined __AVX512F__
TSC_FN F FN(round)(F x) { return __builtin_ia32_rndscaleps_mask(x, 8, x, 0xffff, 4); }
TSC_FN F FN(floor)(F x) { return __builtin_ia32_rndscaleps_mask(x, 9, x, 0xffff, 4); }
TSC_FN F FN(ceil)(F x) { return __builtin_ia32_rndscaleps_mask(x, 10, x, 0xffff, 4); }
#elif TSC_LANES == 8 && defined __AVX__
TSC_FN F FN(round)(F x) { return __builtin_ia32_roundps256(x, 8); }
TSC_FN F FN(floor)(F x) { return __builtin_ia32_roundps256(x, 9); }
TSC_FN F FN(ceil)(F x) { return __builtin_ia32_roundps256(x, 10); }
#elif TSC_LANES == 4 && defined __SSE4_1__
TSC_FN F FN(round)(F x) { return __builtin_ia32_roundps(x, 8); }
TSC_FN F FN(floor)(F x) { return __builtin_ia32_roundps(x, 9); }
TSC_FN F FN(ceil)(F x) { return __builtin_ia32_roundps(x, 10); }
#else
TSC_FN F FN(round)(F x) {
  /* Adding 2^23 drops the fraction, to even; larger numbers have none. */
  F a = FLOAT(BITS(x) & 0x7fffffff);
  F r = FLOAT(BITS((a + 8388608.0f) - 8388608.0f) | (BITS(x) & (int32_t)0x80000000));
  return PICK(MASK(a < 8388608.0f), r, x);
}

TSC_FN F FN(floor)(F x) {
  F r = FN(round)(x);
  return PICK(MASK(r > x), r - 1.0f, r);
}

TSC_FN F FN(ceil)(F x) {
  F r = FN(round)(x), up = r + 1.0f;
  return PICK(MASK(r < x), FLOAT(BITS(up) | (BITS(x) & (int32_t)0x80000000)), r);
}
#endif

#if TSC_LANES > 1
TSC_FN F FN(min)(F a, F b) { return PICK(a != a, a, FN(smaller)(a, b)); }
TSC_FN F FN(max)(F a, F b) { return PICK(a != a, a, FN(larger)(a, b)); }
TSC_FN F FN(abs)(F x) { return FLOAT(BITS(x) & 0x7fffffff); }
TSC_FN F FN(reciprocal)(F x) { return 1.0f / x; }
TSC_FN F FN(sign)(F x) { return PICK(x != x, x, __builtin_convertvector((x < 0.0f) - (x > 0.0f), F)); }
TSC_FN F FN(sqrt)(F x) {
  F r;
  for (int l = 0; l < TSC_LANES; l++) r[l] = __builtin_sqrtf(x[l]);
  return r;
}

/* Towards zero; what no int32 equals becomes the least, as the instructions have it (tsc_to_int32). */
TSC_FN I FN(to_int32)(F x) {
#if TSC_LANES == 16 && defined __AVX512F__
  return (I)__builtin_ia32_cvttps2dq512_mask(x, (I){0}, -1, 4);
#elif TSC_LANES == 8 && defined __AVX__
  return (I)__builtin_ia32_cvttps2dq256(x);
#elif TSC_LANES == 4 && defined __SSE2__
  return (I)__builtin_ia32_cvttps2dq(x);
#else
  I r;
  for (int l = 0; l < TSC_LANES; l++) r[l] = tsc_to_int32(x[l]);
  return r;
#endif
}

/* Bytes as int32 and back, the low ones of each. gcc takes __builtin_convertvector apart here, element by element. */
#define OF(to, from, v) TSC_JOIN(tsc_##to##_of_##from##x, TSC_LANES)(v)
#define BYTES(kind) TSC_JOIN(tsc_##kind##x, TSC_LANES)
#if TSC_LANES == 16 && defined __AVX512F__ && !defined __clang__
TSC_FN I OF(int32, uint8, BYTES(uint8) v) { return (I)__builtin_ia32_pmovzxbd512_mask((tsc_chars)v, (I){0}, -1); }
TSC_FN I OF(int32, int8, BYTES(int8) v) { return (I)__builtin_ia32_pmovsxbd512_mask((tsc_chars)v, (I){0}, -1); }
TSC_FN BYTES(uint8) OF(uint8, int32, I v) { return (BYTES(uint8))__builtin_ia32_pmovdb512_mask(v, (tsc_chars){0}, -1); }
#else
#if TSC_LANES == 8 && defined __AVX2__ && !defined __clang__
#define WIDE(kind, v) __builtin_ia32_pmov##kind##xbd256((tsc_chars)(tsc_longs){(long long)v, 0})
#elif TSC_LANES == 4 && defined __SSE4_1__ && !defined __clang__
#define WIDE(kind, v) __builtin_ia32_pmov##kind##xbd128((tsc_chars)(tsc_ints){(int)v, 0, 0, 0})
#else
#define WIDE(kind, v) __builtin_convertvector(v, I)
#endif
TSC_FN I OF(int32, uint8, BYTES(uint8) v) { return (I)WIDE(z, v); }
TSC_FN I OF(int32, int8, BYTES(int8) v) { return (I)WIDE(s, v); }
#undef WIDE
TSC_FN BYTES(uint8) OF(uint8, int32, I v) {
#if TSC_LANES == 8 && defined __AVX2__ && TSC_HAS_SHUFFLES
  tsc_many_chars b = (tsc_many_chars)v;
  return (BYTES(uint8))__builtin_shufflevector(b, b, 0, 4, 8, 12, 16, 20, 24, 28);
#elif TSC_LANES == 4 && defined __SSSE3__ && TSC_HAS_SHUFFLES
  tsc_chars b = (tsc_chars)v;
  return (BYTES(uint8))__builtin_shufflevector(b, b, 0, 4, 8, 12);
#else
  return __builtin_convertvector(v, BYTES(uint8));
#endif
}
#endif
TSC_FN BYTES(int8) OF(int8, int32, I v) { return (BYTES(int8))OF(uint8, int32, v); }
#undef OF
#undef BYTES

/* The bits of bfloat16, as tsc_scalar.h has them. */
typedef TSC_JOIN(tsc_uint16x, TSC_LANES) TSC_JOIN(tsc_bfloatx, TSC_LANES);
TSC_FN F TSC_JOIN(tsc_from_bfloat_uint16x, TSC_LANES)(TSC_JOIN(tsc_bfloatx, TSC_LANES) x) {
  return FLOAT(__builtin_convertvector(x, I) << 16);
}
TSC_FN TSC_JOIN(tsc_bfloatx, TSC_LANES) FN(to_bfloat)(F x) {
  const I whole = BITS(x), rounded = (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
  return __builtin_convertvector((x != x & 0x7fc0) | (x == x & rounded), TSC_JOIN(tsc_bfloatx, TSC_LANES));
}

/* Two numbers of 16 bits in the lanes of 32, and acc + the sum of the products of both (vpmaddwd, which wraps around as well). */
#define PAIRS(name) TSC_JOIN(tsc_##name##_int32x, TSC_LANES)
TSC_FN I PAIRS(pair)(I low, I high) {
#if TSC_LANES == 8 && defined __AVX2__
  return (I)__builtin_ia32_pblendw256((tsc_shorts16)low, (tsc_shorts16)(high << 16), 0xaa);
#elif TSC_LANES == 4 && defined __SSE4_1__
  return (I)__builtin_ia32_pblendw128((tsc_shorts8)low, (tsc_shorts8)(high << 16), 0xaa);
#else
  return (low & 0xffff) | (high << 16);
#endif
}
typedef short PAIRS(shorts) __attribute__((vector_size(4 * TSC_LANES)));
typedef signed char PAIRS(chars) __attribute__((vector_size(2 * TSC_LANES)));
typedef unsigned char PAIRS(uchars) __attribute__((vector_size(2 * TSC_LANES)));
#if TSC_LANES == 16 && defined __AVX512BW__ && !defined __clang__
#define WIDE(kind, v, T) __builtin_ia32_pmov##kind##xbw512_mask((tsc_many_chars)v, (tsc_shorts32){0}, -1)
#elif TSC_LANES == 8 && defined __AVX2__ && !defined __clang__
#define WIDE(kind, v, T) __builtin_ia32_pmov##kind##xbw256((tsc_chars)v)
#elif TSC_LANES == 4 && defined __SSE4_1__ && !defined __clang__
#define WIDE(kind, v, T) __builtin_ia32_pmov##kind##xbw128((tsc_chars)(tsc_longs){(long long)v, 0})
#else
#define WIDE(kind, v, T) __builtin_convertvector(v, T)
#endif
TSC_FN I PAIRS(pairs_of_int8)(const int8_t *p) {
  PAIRS(chars) v;
  __builtin_memcpy(&v, p, sizeof v);
  return (I)WIDE(s, v, PAIRS(shorts));
}
TSC_FN I PAIRS(pairs_of_uint8)(const uint8_t *p) {
  PAIRS(uchars) v;
  __builtin_memcpy(&v, p, sizeof v);
  return (I)WIDE(z, v, PAIRS(shorts));
}
#undef WIDE
TSC_FN I PAIRS(dot)(I acc, I a, I b) {
#if defined __AVX512VNNI__ && defined __AVX512VL__
  __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  return acc;
#elif TSC_LANES == 16 && defined __AVX512BW__ && !defined __clang__
  return acc + (I)__builtin_ia32_pmaddwd512_mask((tsc_shorts32)a, (tsc_shorts32)b, (I){0}, -1);
#elif TSC_LANES == 16 && defined __AVX512BW__
  return acc + (I)__builtin_ia32_pmaddwd512((tsc_shorts32)a, (tsc_shorts32)b);
#elif TSC_LANES == 8 && defined __AVX2__
  TSC_DOT_IN_PLACE
  return acc + (I)__builtin_ia32_pmaddwd256((tsc_shorts16)a, (tsc_shorts16)b);
#elif TSC_LANES == 4 && defined __SSE2__
  return acc + (I)__builtin_ia32_pmaddwd128((tsc_shorts8)a, (tsc_shorts8)b);
#else
  return acc + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

/* Numbers that fill lanes of 32 bits where they lie side by side; acc + the sum of the products of bytes, those of a without a sign
   and those of b with one (vpdpbusd, which wraps around as well); and acc + those of two bfloat16 each, the upper ones first
   (vdpbf16ps, which takes what is smaller than normal numbers for 0). */
TSC_FN I PAIRS(side_by_side)(const void *p) {
  I all;
  return __builtin_memcpy(&all, p, sizeof all), all;
}
TSC_FN I PAIRS(dot_bytes)(I acc, I a, I b) {
#if defined __AVX512VNNI__ && defined __AVX512VL__
  __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
#else
  for (int at = 0; at < 32; at += 8) acc += (a >> at & 255) * (b << (24 - at) >> 24);
#endif
  return acc;
}
TSC_FN I PAIRS(quad)(I a, I b, I c, I d) { return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | d << 24; }
TSC_FN I PAIRS(dot_pair)(I a, I b) { return PAIRS(dot)((I){0}, a, b); }
TSC_FN I PAIRS(dot_quad)(I a, I b) { return PAIRS(dot_bytes)((I){0}, a, b); }
TSC_FN F FN(dot_bfloat)(F acc, I a, I b) {
#if defined __AVX512BF16__ && defined __AVX512VL__
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
#else
  acc += FLOAT(a & -65536) * FLOAT(b & -65536);
  acc += FLOAT(a << 16) * FLOAT(b << 16);
#endif
  return acc;
}
#undef PAIRS
#endif

#undef F
#undef I
#undef FN
#undef FMA
#undef HORNER
#undef K
#undef BITS
#undef FLOAT
#undef PICK
#undef MASK
