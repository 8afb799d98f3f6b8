/* The self test of a compiler: kernels as emit.py writes them, with the flags that kernels get. Each is held against its meaning,
 * taken one element at a time from volatile memory, which no optimisation touches. Prints the names of those that are wrong
 * and returns their number. */
#include <stdio.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "tsc_kernel.h"
#if defined __AVX512F__
#define TSC_LANES 16
#define L(name) tsc_##name##x16
#define LU(name) tsc_##name##x16u
#define TSC_OF_INT8 tsc_int32_of_int8x16
#elif defined __AVX2__
#define TSC_LANES 8
#define L(name) tsc_##name##x8
#define LU(name) tsc_##name##x8u
#define TSC_OF_INT8 tsc_int32_of_int8x8
#else
#define TSC_LANES 4
#define L(name) tsc_##name##x4
#define LU(name) tsc_##name##x4u
#define TSC_OF_INT8 tsc_int32_of_int8x4
#endif
#include "tsc_math.h"
#include "tsc_square.h"

enum { LANES = TSC_LANES, MOST = 512 };
#define KERNEL __attribute__((noinline)) int32_t
typedef int32_t kernel(const tsc_args *, int64_t, int64_t, void *);

static int64_t blocks_of(int64_t n, int64_t size) { return tsc_floordiv_int64(n + size - 1, size); }

static void run(kernel *volatile of, void *a, void *b, void *out, int64_t s0, int64_t s1, int64_t blocks) {
  void *const buffers[] = {a, b, out};
  const int64_t sizes[] = {s0, s1};
  const tsc_args args = {buffers, sizes};
  of(&args, 0, blocks, 0);
}

/* -- rows of W elements, from one of two places: gcc 12.2 gives a row the mask of another row where it vectorises this ------- */

#define TSC_ROWS(T, W)                                                                                                        \
  KERNEL rows_##T##_##W(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {                        \
    const T *restrict const t0 = args->buffers[0];                                                                            \
    const T *restrict const t1 = args->buffers[1];                                                                            \
    T *restrict const t2 = args->buffers[2];                                                                                  \
    const int64_t s0 = args->sizes[0], s1 = args->sizes[1];                                                                   \
    for (int64_t block = block_begin; block < block_end; block += 1) {                                                        \
      const int64_t c0 = (block * 128);                                                                                       \
      for (int64_t c2 = 0; c2 < tsc_min_int64((s1 - c0), 128); c2 += 1) {                                                     \
        if (((c0 + c2) < s0)) {                                                                                               \
          for (int64_t c3 = 0; c3 < W; c3 += 1) {                                                                             \
            t2[(((c0 * W) + (c2 * W)) + c3)] = t0[(((c0 * W) + (c2 * W)) + c3)];                                              \
          }                                                                                                                   \
        } else {                                                                                                              \
          for (int64_t c3 = 0; c3 < W; c3 += 1) {                                                                             \
            t2[(((c0 * W) + (c2 * W)) + c3)] = t1[(((((-W) * s0) + (c0 * W)) + (c2 * W)) + c3)];                              \
          }                                                                                                                   \
        }                                                                                                                     \
      }                                                                                                                       \
    }                                                                                                                         \
    return 0;                                                                                                                 \
  }                                                                                                                           \
  KERNEL chosen_##T##_##W(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {                      \
    const T *restrict const t0 = args->buffers[0];                                                                            \
    const T *restrict const t1 = args->buffers[1];                                                                            \
    T *restrict const t2 = args->buffers[2];                                                                                  \
    const int64_t s0 = args->sizes[0], s1 = args->sizes[1];                                                                   \
    for (int64_t c2 = 0; c2 < s1; c2 += 1) {                                                                                  \
      for (int64_t c3 = 0; c3 < W; c3 += 1) {                                                                                 \
        t2[((c2 * W) + c3)] = ((c2 < s0) ? t0[((c2 * W) + c3)] : t1[((((-W) * s0) + (c2 * W)) + c3)]);                        \
      }                                                                                                                       \
    }                                                                                                                         \
    return 0;                                                                                                                 \
  }                                                                                                                           \
  static int wrong_rows_##T##_##W(void) {                                                                                     \
    static T a[MOST], b[MOST], out[MOST];                                                                                     \
    int bad = 0;                                                                                                              \
    for (int i = 0; i < MOST; i++) a[i] = (T)i, b[i] = (T)(i + 71);                                                           \
    for (int form = 0; form < 2; form++)                                                                                      \
      for (int64_t s0 = 0; s0 < 23; s0 += 3)                                                                                  \
        for (int64_t s1 = s0; s1 < s0 + 24; s1 += 5) {                                                                        \
          memset(out, 0, sizeof out);                                                                                         \
          run(form ? chosen_##T##_##W : rows_##T##_##W, a, b, out, s0, s1, blocks_of(s1, 128));                               \
          const volatile T *va = a, *vb = b, *vo = out;                                                                       \
          for (int64_t i = 0; i < s1 * W; i++) bad += vo[i] != (i < s0 * W ? va[i] : vb[i - s0 * W]);                         \
        }                                                                                                                     \
    return bad;                                                                                                               \
  }

TSC_ROWS(float, 1)
TSC_ROWS(float, 2)
TSC_ROWS(float, 3)
TSC_ROWS(float, 4)
TSC_ROWS(double, 2)
TSC_ROWS(int32_t, 2)
TSC_ROWS(int64_t, 2)
TSC_ROWS(uint8_t, 2)

/* -- elementwise: whole vectors and a masked rest, choices and comparisons ----------------------------------------------------- */

#define TSC_CHOICE(x, y)                                                                                                      \
  TSC_BLEND(L(int32), L(float32), ((x) >= TSC_SPLAT(L(float32), (float)0.0f)), (x),                                           \
            ((x) * (y) + TSC_SPLAT(L(float32), (float)-0.0f)))

KERNEL leaky(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const float *restrict const t0 = args->buffers[0];
  const float *restrict const t1 = args->buffers[1];
  float *restrict const t2 = args->buffers[2];
  const int64_t s0 = args->sizes[0];
  const int64_t c1_m = (tsc_max_int64(tsc_floordiv_int64(s0, LANES), 0) * LANES);
  for (int64_t c1_v = 0; c1_v < c1_m; c1_v += LANES) {
    *(LU(float32) *)(t2 + (c1_v)) = TSC_CHOICE((*(const LU(float32) *)(t0 + c1_v)), (*(const LU(float32) *)(t1 + c1_v)));
  }
  if ((c1_m < s0)) {
    const int64_t tsc_active = (s0 - c1_m);
    L(store_float32)(t2 + c1_m, tsc_active, TSC_CHOICE((L(load_float32)(t0 + c1_m, tsc_active)), (L(load_float32)(t1 + c1_m, tsc_active))));
  }
  return 0;
}

/* bool[i] = a[i] < b[i] and not isnan(a[i]) */
KERNEL compared(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const float *restrict const t0 = args->buffers[0];
  const float *restrict const t1 = args->buffers[1];
  uint8_t *restrict const t2 = args->buffers[2];
  for (int64_t c1 = 0; c1 < args->sizes[0] - (LANES - 1); c1 += LANES) {
    const L(float32) x = (*(const LU(float32) *)(t0 + c1)), y = (*(const LU(float32) *)(t1 + c1));
    *(LU(bool) *)(t2 + c1) = __builtin_convertvector((-((x < y) & (~(x != x)))), L(bool));
  }
  return 0;
}

static const float odd_floats[] = {0.0f, -0.0f, 1.5f, -2.5f, 3e38f, -3e38f, 1e-40f, __builtin_inff(), -__builtin_inff()};

static void fill(float *a, int n, int step) {
  for (int i = 0; i < n; i++)
    a[i] = i % 11 == step ? __builtin_nanf("") : odd_floats[(i * step + i / 9) % 9] * (i % 5 == 4 ? 0.5f : 1.0f);
}

/* Bit for bit, all NaNs being one. */
static int differ(float x, float y) {
  volatile uint32_t a, b;
  uint32_t i, j;
  memcpy(&i, &x, 4), memcpy(&j, &y, 4);
  a = i, b = j;
  const int both = (a & 0x7fffffff) > 0x7f800000 && (b & 0x7fffffff) > 0x7f800000;
  return a != b && !both;
}

static int is_nan(float x) {
  volatile uint32_t a;
  uint32_t i;
  memcpy(&i, &x, 4);
  a = i;
  return (a & 0x7fffffff) > 0x7f800000;
}

static int wrong_elementwise(void) {
  static float a[MOST], b[MOST], out[MOST];
  static uint8_t less[MOST];
  const volatile float *va = a, *vb = b, *vo = out;
  const volatile uint8_t *vl = less;
  int bad = 0;
  fill(a, MOST, 2), fill(b, MOST, 7);
  for (int64_t n = 0; n < 3 * LANES + 2; n++) {
    for (int i = 0; i < MOST; i++) out[i] = 7.0f, less[i] = 9;
    run(leaky, a, b, out, n, 0, 1), run(compared, a, b, less, n, 0, 1);
    for (int64_t i = 0; i < 4 * LANES; i++) {
      const volatile float product = va[i] * vb[i], zero = -0.0f;
      const float expected = i >= n ? 7.0f : !is_nan(va[i]) && va[i] >= 0.0f ? va[i] : is_nan(product) ? product : product + zero;
      bad += differ(vo[i], expected);
      const int known = i < n / LANES * LANES, smaller = !is_nan(va[i]) && !is_nan(vb[i]) && va[i] < vb[i];
      bad += vl[i] != (known ? smaller : 9);
    }
  }
  return bad;
}

/* -- runs of lanes of memory, spaced or not: what is outside is zero ------------------------------------------------------- */

KERNEL windows(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const float *restrict const t0 = args->buffers[0];
  float *restrict const t2 = args->buffers[2];
  const int64_t s0 = args->sizes[0], s1 = args->sizes[1];
  const int64_t tsc_first0 = tsc_max_int64(-s0, 0), tsc_last0 = tsc_min_int64(s1 - s0, LANES);
  *(LU(float32) *)(t2) = L(range_float32)(t0 + s0, tsc_first0, tsc_last0, 1);
  *(LU(float32) *)(t2 + LANES) = L(spaced_float32)(t0 + s0, 2, tsc_first0, tsc_last0, 1);
  *(LU(float32) *)(t2 + 2 * LANES) = L(range_float32)(t0 + s0, tsc_first0, tsc_last0, s1 < 0);
  return 0;
}

static int wrong_windows(void) {
  static float memory[MOST], out[MOST];
  const volatile float *from = memory + MOST / 2, *vo = out;
  int bad = 0;
  for (int i = 0; i < MOST; i++) memory[i] = 1.0f + i;
  for (int64_t s0 = -LANES; s0 <= LANES; s0++)
    for (int64_t s1 = 0; s1 <= 2 * LANES; s1 += 3) {
      run(windows, memory + MOST / 2, 0, out, s0, s1, 1);
      for (int64_t l = 0; l < LANES; l++) {
        const int inside = l >= -s0 && l < s1 - s0;
        bad += differ(vo[l], inside ? from[s0 + l] : 0.0f);
        bad += differ(vo[LANES + l], inside ? from[s0 + 2 * l] : 0.0f);
        bad += differ(vo[2 * LANES + l], 0.0f);
      }
    }
  return bad;
}

/* -- a register tile: c[2, 2 * LANES] = a[2, k] b[k, 2 * LANES], in the order of k ------------------------------------------ */

KERNEL tile(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const float *restrict const t0 = args->buffers[0];
  const float *restrict const t1 = args->buffers[1];
  float *restrict const t2 = args->buffers[2];
  const int64_t s0 = args->sizes[0];
  L(float32) acc_0, acc_1, acc_2, acc_3;
  acc_0 = acc_1 = acc_2 = acc_3 = TSC_SPLAT(L(float32), (float)0.0f);
  for (int64_t c5 = 0; c5 < s0; c5 += 1) {
    const L(float32) tsc_b0 = (*(const LU(float32) *)(t1 + (c5 * (2 * LANES))));
    const L(float32) tsc_b1 = (*(const LU(float32) *)(t1 + ((c5 * (2 * LANES)) + LANES)));
    const L(float32) tsc_a0 = TSC_SPLAT(L(float32), (float)t0[c5]);
    acc_0 = acc_0 + tsc_a0 * tsc_b0;
    acc_1 = acc_1 + tsc_a0 * tsc_b1;
    const L(float32) tsc_a1 = TSC_SPLAT(L(float32), (float)t0[(c5 + s0)]);
    acc_2 = acc_2 + tsc_a1 * tsc_b0;
    acc_3 = acc_3 + tsc_a1 * tsc_b1;
  }
  *(LU(float32) *)(t2) = acc_0;
  *(LU(float32) *)(t2 + LANES) = acc_1;
  *(LU(float32) *)(t2 + 2 * LANES) = acc_2;
  *(LU(float32) *)(t2 + 3 * LANES) = acc_3;
  return 0;
}

static int wrong_tile(void) {
  enum { K = 9 };
  static float a[2 * K], b[K * 2 * LANES], out[4 * LANES];
  const volatile float *va = a, *vb = b, *vo = out;
  int bad = 0;
  for (int i = 0; i < 2 * K; i++) a[i] = 0.5f * (i % 7) - 1.0f;
  for (int i = 0; i < K * 2 * LANES; i++) b[i] = 0.25f * (i % 13) - 1.5f;  /* products and sums are exact */
  run(tile, a, b, out, K, 0, 1);
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2 * LANES; j++) {
      volatile float sum = 0;
      for (int k = 0; k < K; k++) sum += va[i * K + k] * vb[k * 2 * LANES + j];
      bad += differ(vo[i * 2 * LANES + j], sum);
    }
  return bad;
}

/* -- reductions: a sum keeps its order, the greatest of what holds a NaN is NaN ------------------------------------------------ */

KERNEL sums(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const float *restrict const t0 = args->buffers[0];
  float *restrict const t2 = args->buffers[2];
  const int64_t s0 = args->sizes[0];
  float t1_acc[2] __attribute__((aligned(64)));
  t1_acc[0] = 0.0f;
  t1_acc[1] = (-__builtin_inff());
  for (int64_t c2 = 0; c2 < s0; c2 += 1) {
    t1_acc[0] = (t1_acc[0] + t0[c2]);
    t1_acc[1] = tsc_max_float32(t1_acc[1], t0[c2]);
  }
  t2[0] = t1_acc[0];
  t2[1] = t1_acc[1];
  return 0;
}

static int wrong_sums(void) {
  static float a[MOST], out[2];
  const volatile float *va = a, *vo = out;
  int bad = 0;
  for (int with_nan = 0; with_nan < 2; with_nan++) {
    for (int i = 0; i < MOST; i++) a[i] = i % 3 ? 1e8f * (i % 2 ? 1 : -1) : 0.3f * i;
    if (with_nan) a[77] = __builtin_nanf("");
    run(sums, a, 0, out, MOST - 3, 0, 1);
    volatile float sum = 0.0f, most = -__builtin_inff();
    for (int i = 0; i < MOST - 3; i++) {
      sum += va[i];
      most = is_nan(most) || is_nan(va[i]) ? __builtin_nanf("") : most > va[i] ? most : va[i];
    }
    bad += differ(vo[0], sum) + differ(vo[1], most);
  }
  return bad;
}

/* -- integers wrap around, round as the tensor DSL says, and are the least where no one equals a float----------------------------- */

KERNEL integers(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const int32_t *restrict const t0 = args->buffers[0];
  const float *restrict const t1 = args->buffers[1];
  int64_t *restrict const t2 = args->buffers[2];
  const int64_t s0 = args->sizes[0];
  for (int64_t c1 = 0; c1 < s0; c1 += 1) {
    t2[(c1 * 4)] = ((int64_t)((t0[c1] + 1) > t0[c1]));
    t2[((c1 * 4) + 1)] = ((int64_t)(t0[c1] * t0[c1]));
    t2[((c1 * 4) + 2)] = ((int64_t)tsc_floordiv_int32(t0[c1], -3) * 8) + tsc_mod_int32(t0[c1], 7);
    t2[((c1 * 4) + 3)] = tsc_to_int64(t1[c1]);
  }
  return 0;
}

static int wrong_integers(void) {
  static int32_t a[] = {0, 1, -1, 7, -8, 65536, INT32_MAX, INT32_MIN, 123456789};
  static float b[] = {0.5f, -1.5f, 1e30f, -1e30f, __builtin_inff(), -__builtin_inff(), 3e9f, -7.99f, 0.0f};
  static int64_t out[36];
  const int64_t converted[] = {0, -1, INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN, 3000000000, -7, 0};
  const volatile int32_t *va = a;
  const volatile int64_t *vo = out;
  int bad = 0;
  run(integers, a, b, out, 9, 0, 1);
  for (int i = 0; i < 9; i++) {
    const int64_t x = va[i];
    int64_t quotient = x / -3, rest = x % 7;
    quotient -= x % -3 > 0, rest += rest < 0 ? 7 : 0;
    bad += vo[4 * i] != (x != INT32_MAX);
    bad += vo[4 * i + 1] != (int32_t)(uint32_t)((uint64_t)x * (uint64_t)x);
    bad += vo[4 * i + 2] != quotient * 8 + rest;
    bad += vo[4 * i + 3] != converted[i];
  }
  return bad;
}

/* -- rows that become columns, in whole squares and in parts of them, the first columns filled up with zeros --------------------- */

enum { ROWS = 2 * LANES + 3, COLUMNS = 2 * LANES - 1, FILLED = 3 * LANES };

KERNEL squares(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const int32_t *restrict const t0 = args->buffers[0];
  int32_t *restrict const t2 = args->buffers[2];
  const int64_t s0 = args->sizes[0], s1 = args->sizes[1];
  for (int64_t c0 = 0; c0 < s0; c0 += LANES)
    for (int64_t c1 = 0; c1 < s1; c1 += LANES)
      TSC_JOIN(tsc_square, TSC_LANES)(&t2[c1 * FILLED + c0], FILLED, &t0[c0 * s1 + c1], s1, tsc_min_int64(LANES, s0 - c0),
                                      tsc_min_int64(LANES, s1 - c1), c1 ? tsc_min_int64(LANES, s0 - c0) : LANES);
  return 0;
}

static int wrong_squares(void) {
  static int32_t a[ROWS * COLUMNS], out[FILLED * COLUMNS];
  const volatile int32_t *va = a, *vo = out;
  int bad = 0;
  for (int i = 0; i < ROWS * COLUMNS; i++) a[i] = i * 1000003 - 2000000000;
  for (int i = 0; i < FILLED * COLUMNS; i++) out[i] = 7;
  run(squares, a, 0, out, ROWS, COLUMNS, 1);
  for (int i = 0; i < FILLED; i++)
    for (int j = 0; j < COLUMNS; j++)
      bad += vo[j * FILLED + i] != (i < ROWS ? va[i * COLUMNS + j] : j < LANES ? 0 : 7);
  return bad;
}

#include "self_test_dots.h"

/* -- functions: close to libm, and what is special stays special ---------------------------------------------------------------- */

KERNEL functions(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const float *restrict const t0 = args->buffers[0];
  float *restrict const t2 = args->buffers[2];
  for (int64_t c1 = 0; c1 < args->sizes[0]; c1 += LANES) {
    const L(float32) x = (*(const LU(float32) *)(t0 + c1));
    *(LU(float32) *)(t2 + c1) = L(exp_float32)(x);
    *(LU(float32) *)(t2 + MOST + c1) = L(tanh_float32)(x);
    *(LU(float32) *)(t2 + 2 * MOST + c1) = L(erf_float32)(x);
    *(LU(float32) *)(t2 + 3 * MOST + c1) = L(max_float32)(x, TSC_SPLAT(L(float32), (float)0.5f));
  }
  return 0;
}

static int off(float found, double expected) {
  if (is_nan((float)expected) || is_nan(found)) return is_nan(found) != is_nan((float)expected);
  const volatile double error = (double)found - expected, scale = expected < 0 ? -expected : expected;
  return !((float)expected == found || (error < 0 ? -error : error) <= 4e-7 * scale + 1e-44);
}

static int wrong_functions(void) {
  static float a[MOST], out[4 * MOST];
  const volatile float *va = a, *vo = out;
  int bad = 0;
  for (int i = 0; i < MOST; i++) a[i] = (i - 256) * 0.11f;
  a[3] = __builtin_nanf(""), a[5] = __builtin_inff(), a[40] = -__builtin_inff(), a[41] = 1e-30f;
  run(functions, a, 0, out, MOST, 0, 1);
  for (int i = 0; i < MOST; i++) {
    const volatile double x = va[i];
    const int nan = is_nan(va[i]);
    bad += off(vo[i], exp(x)) + off(vo[MOST + i], tanh(x)) + off(vo[2 * MOST + i], erf(x));
    bad += differ(vo[3 * MOST + i], nan ? va[i] : va[i] > 0.5f ? va[i] : 0.5f);
  }
  return bad;
}

int32_t tsc_self_test(void) {
  static const struct {
    const char *name;
    int (*wrong)(void);
  } tests[] = {
      {"rows of 1", wrong_rows_float_1}, {"rows of 2", wrong_rows_float_2}, {"rows of 3", wrong_rows_float_3},
      {"rows of 4", wrong_rows_float_4}, {"rows of 2 doubles", wrong_rows_double_2}, {"rows of 2 int32", wrong_rows_int32_t_2},
      {"rows of 2 int64", wrong_rows_int64_t_2}, {"rows of 2 bytes", wrong_rows_uint8_t_2}, {"elementwise", wrong_elementwise},
      {"windows", wrong_windows}, {"register tile", wrong_tile}, {"sums", wrong_sums}, {"integers", wrong_integers},
      {"squares", wrong_squares}, {"pairs", wrong_pairs}, {"quads", wrong_quads}, {"bfloats", wrong_bfloats},
      {"functions", wrong_functions}};
  int bad = 0;
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
    if (tests[i].wrong()) {
      printf("%s%s", bad ? ", " : "", tests[i].name);
      bad++;
    }
  fflush(stdout);
  return bad;
}
