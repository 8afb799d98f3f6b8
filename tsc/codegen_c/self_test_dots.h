/* The part of self_test.c in which register tiles take several steps at a time. */

/* -- a register tile of whole numbers, two steps at a time: its sums wrap around, too ------------------------------------------- */

KERNEL TSC_TILED pairs(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const int16_t *restrict const t0 = args->buffers[0];
  const int8_t *restrict const t1 = args->buffers[1];
  int32_t *restrict const t2 = args->buffers[2];
  L(int32) sums[5];
  for (int row = 0; row < 5; row++) sums[row] = TSC_SPLAT(L(int32), (int32_t)0);
  for (int64_t k = 0; k < args->sizes[0]; k += 2) {
    const L(int32) low = TSC_OF_INT8((*(const LU(int8) *)(t1 + k * LANES)));
    const L(int32) high = TSC_OF_INT8((*(const LU(int8) *)(t1 + (k + 1) * LANES)));
    const L(int32) both = L(pair_int32)(low, high);
    sums[0] = L(dot_int32)(sums[0], TSC_SPLAT(L(int32), tsc_together_at(&t0[k])), both);
    sums[1] = L(dot_int32)(sums[1], TSC_SPLAT(L(int32), tsc_pair_int32((int32_t)t0[MOST + k], (int32_t)t0[MOST + k + 1])), both);
    sums[2] = L(dot_int32)(sums[2], L(pair_int32)(TSC_SPLAT(L(int32), -32768), TSC_SPLAT(L(int32), -32768)),
                           L(pair_int32)(TSC_SPLAT(L(int32), -32768), TSC_SPLAT(L(int32), -32768)));
    sums[3] = L(dot_int32)(sums[3], TSC_SPLAT(L(int32), tsc_together_at(&t0[k])), L(pairs_of_int8_int32)(&t1[k * LANES]));
    sums[4] = L(dot_int32)(sums[4], TSC_SPLAT(L(int32), tsc_together_at(&t0[k])),
                           L(pairs_of_uint8_int32)((const uint8_t *)&t1[k * LANES]));
  }
  for (int row = 0; row < 5; row++) *(LU(int32) *)(t2 + row * LANES) = sums[row];
  return 0;
}

static int wrong_pairs(void) {
  enum { STEPS = 26 };
  static int16_t a[2 * MOST];
  static int8_t b[STEPS * LANES];
  static int32_t out[5 * LANES];
  const volatile int16_t *va = a;
  const volatile int8_t *vb = b;
  const volatile int32_t *vo = out;
  int bad = 0;
  for (int i = 0; i < 2 * MOST; i++) a[i] = (int16_t)(i * 7919 % 65536 - 32768);
  for (int i = 0; i < STEPS * LANES; i++) b[i] = (int8_t)(i * 37 % 256 - 128);
  run(pairs, a, b, out, STEPS, 0, 1);
  for (int row = 0; row < 3; row++)
    for (int l = 0; l < LANES; l++) {
      uint32_t sum = 0;
      for (int k = 0; k < STEPS; k++)
        sum += row < 2 ? (uint32_t)(va[row * MOST + k] * vb[k * LANES + l]) : 32768u * 32768u;
      bad += vo[row * LANES + l] != (int32_t)sum;
    }
  for (int row = 3; row < 5; row++) /* the same bytes as pairs that lie side by side, with a sign and without */
    for (int l = 0; l < LANES; l++) {
      uint32_t sum = 0;
      for (int k = 0; k < STEPS; k++) {
        const int x = vb[k / 2 * 2 * LANES + 2 * l + k % 2];
        sum += (uint32_t)(va[k] * (row == 4 ? x & 255 : x));
      }
      bad += vo[row * LANES + l] != (int32_t)sum;
    }
  return bad;
}

/* -- and four at a time, of bytes with a sign and without ------------------------------------------------------------------------ */

KERNEL TSC_TILED quads(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const uint8_t *restrict const t0 = args->buffers[0];
  const int8_t *restrict const t1 = args->buffers[1];
  int32_t *restrict const t2 = args->buffers[2];
  L(int32) sums[3];
  for (int row = 0; row < 3; row++) sums[row] = TSC_SPLAT(L(int32), (int32_t)2000000000);
  for (int64_t k = 0; k < args->sizes[0]; k += 4) {
    const L(int32) columns = L(side_by_side_int32)(&t1[k * LANES]), row = TSC_SPLAT(L(int32), tsc_together_at(&t0[k]));
    sums[0] = L(dot_bytes_int32)(sums[0], row, columns);
    sums[1] = L(dot_bytes_int32)(sums[1], columns, row);
    sums[2] = L(dot_bytes_int32)(sums[2], TSC_SPLAT(L(int32), tsc_quad_int32(t0[k + 3], t0[k + 2], t0[k + 1], t0[k])), columns);
  }
  for (int row = 0; row < 3; row++) *(LU(int32) *)(t2 + row * LANES) = sums[row];
  return 0;
}

static int wrong_quads(void) {
  enum { STEPS = 28 };
  static uint8_t a[STEPS];
  static int8_t b[STEPS * LANES];
  static int32_t out[3 * LANES];
  const volatile uint8_t *va = a;
  const volatile int8_t *vb = b;
  const volatile int32_t *vo = out;
  int bad = 0;
  for (int i = 0; i < STEPS; i++) a[i] = (uint8_t)(255 - i * 37 % 256 * (i > 7)); /* the first sums of four are no int16 */
  for (int i = 0; i < STEPS * LANES; i++) b[i] = (int8_t)(i < 8 * LANES ? i % 3 / 2 - 128 : i * 29 % 256 - 128);
  run(quads, a, b, out, STEPS, 0, 1);
  for (int row = 0; row < 3; row++)
    for (int l = 0; l < LANES; l++) {
      uint32_t sum = 2000000000;
      for (int k = 0; k < STEPS; k++) {
        const int x = va[row == 2 ? k / 4 * 4 + 3 - k % 4 : k], y = vb[k / 4 * 4 * LANES + 4 * l + k % 4];
        sum += (uint32_t)(row == 1 ? (int8_t)x * (y & 255) : x * y);
      }
      bad += vo[row * LANES + l] != (int32_t)sum;
    }
  return bad;
}

/* -- and two at a time, of bfloat16: numbers of which all products and sums are floats, and roundings ---------------------------- */

KERNEL TSC_TILED bfloats(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const uint16_t *restrict const t0 = args->buffers[0];
  const float *restrict const t1 = args->buffers[1];
  float *restrict const t2 = args->buffers[2];
  L(float32) sum = TSC_SPLAT(L(float32), (float)3.0f);
  for (int64_t k = 0; k < args->sizes[0]; k += 2)
    sum = L(dot_bfloat_float32)(sum, TSC_SPLAT(L(int32), tsc_together_at(&t0[k])), L(side_by_side_int32)(&t0[MOST + k * LANES]));
  *(LU(float32) *)t2 = sum;
  for (int64_t c1 = 0; c1 < MOST; c1 += LANES)
    *(LU(float32) *)(t2 + LANES + c1) = L(from_bfloat_uint16)(L(to_bfloat_float32)(*(const LU(float32) *)(t1 + c1)));
  for (int64_t c1 = 0; c1 < MOST; c1 += 1) t2[LANES + MOST + c1] = tsc_from_bfloat_uint16(tsc_to_bfloat_float32(t1[c1]));
  return 0;
}

static int wrong_bfloats(void) {
  enum { STEPS = 10 };
  static uint16_t a[MOST + STEPS * LANES];
  static float b[MOST], out[LANES + 2 * MOST];
  static const uint32_t given[] = {0x3f808000, 0x3f818000, 0x3f80ffff, 0x7f7fffff,
                                   0x80008001, 0x7f800001, 0xff800000, 0xc2f7fffe};
  static const uint32_t rounded[] = {0x3f800000, 0x3f820000, 0x3f810000, 0x7f800000,
                                     0x80010000, 0x7fc00000, 0xff800000, 0xc2f80000};
  const volatile float *vo = out;
  int bad = 0;
  for (int i = 0; i < MOST + STEPS * LANES; i++) {
    const tsc_float_bits number = {(float)(i * 5 % 17 - 8)};
    a[i] = (uint16_t)(number.bits >> 16);
  }
  for (int i = 0; i < MOST; i++) {
    tsc_float_bits number;
    number.bits = given[i % 8], b[i] = number.value;
  }
  run(bfloats, a, b, out, STEPS, 0, 1);
  for (int l = 0; l < LANES; l++) {
    int sum = 3;
    for (int k = 0; k < STEPS; k++) sum += (k * 5 % 17 - 8) * ((MOST + k / 2 * 2 * LANES + 2 * l + k % 2) * 5 % 17 - 8);
    bad += vo[l] != (float)sum;
  }
  for (int i = 0; i < 2 * MOST; i++) {
    tsc_float_bits number;
    number.value = vo[LANES + i];
    bad += number.bits != rounded[i % 8];
  }
  return bad;
}
