/* Squares of TSC_LANES rows and columns of 32 bits, transposed on their way from one place to another. This file is included once
 * a width, behind tsc_math.h. Neighbours are exchanged within 16 bytes, then these within registers. */

#define SQUARE(name) TSC_JOIN(tsc_##name, TSC_LANES)
#define F TSC_JOIN(tsc_float32x, TSC_LANES)
#define FU TSC_JOIN(F, u)
#define ROW(p, stride, i) ((const FU *)((const char *)(p) + 4 * (i) * (stride)))
#define TARGET(p, stride, i) ((FU *)((char *)(p) + 4 * (i) * (stride)))

#if TSC_LANES == 4
#define LOW(a, b) TSC_CHOSEN(4, a, b, 0, 4, 1, 5)
#define HIGH(a, b) TSC_CHOSEN(4, a, b, 2, 6, 3, 7)
#define LOWS(a, b) TSC_CHOSEN(4, a, b, 0, 1, 4, 5)
#define HIGHS(a, b) TSC_CHOSEN(4, a, b, 2, 3, 6, 7)
#define EACH(X) X(0) X(1) X(2) X(3)
#define PAIRS(X) X(0, 1) X(2, 3)
#define FOURS(X) X(0, 1, 2, 3)
#define PARTS(X)
#define OUT(i) *TARGET(to, ahead, i) = u##i;
#elif TSC_LANES == 8
#define LOW(a, b) TSC_CHOSEN(8, a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) TSC_CHOSEN(8, a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOWS(a, b) TSC_CHOSEN(8, a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGHS(a, b) TSC_CHOSEN(8, a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define EVEN(a, b) TSC_CHOSEN(8, a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define ODD(a, b) TSC_CHOSEN(8, a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define PAIRS(X) X(0, 1) X(2, 3) X(4, 5) X(6, 7)
#define FOURS(X) X(0, 1, 2, 3) X(4, 5, 6, 7)
#define PARTS(X) X(0, 4) X(1, 5) X(2, 6) X(3, 7)
#define PART(a, b) const F v##a = EVEN(u##a, u##b), v##b = ODD(u##a, u##b);
#define OUT(i) *TARGET(to, ahead, i) = v##i;
#else
#define LOW(a, b) TSC_CHOSEN(16, a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define HIGH(a, b) TSC_CHOSEN(16, a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define LOWS(a, b) TSC_CHOSEN(16, a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGHS(a, b) TSC_CHOSEN(16, a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define EVEN(a, b) TSC_CHOSEN(16, a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD(a, b) TSC_CHOSEN(16, a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15)
#define PAIRS(X) X(0, 1) X(2, 3) X(4, 5) X(6, 7) X(8, 9) X(10, 11) X(12, 13) X(14, 15)
#define FOURS(X) X(0, 1, 2, 3) X(4, 5, 6, 7) X(8, 9, 10, 11) X(12, 13, 14, 15)
#define PARTS(X) X(0, 4, 8, 12) X(1, 5, 9, 13) X(2, 6, 10, 14) X(3, 7, 11, 15)
#define PART(a, b, c, d)                                                                                                      \
  const F w##a = EVEN(u##a, u##b), w##b = ODD(u##a, u##b), w##c = EVEN(u##c, u##d), w##d = ODD(u##c, u##d);                   \
  const F v##a = EVEN(w##a, w##c), v##c = ODD(w##a, w##c), v##b = EVEN(w##b, w##d), v##d = ODD(w##b, w##d);
#define OUT(i) *TARGET(to, ahead, i) = v##i;
#endif
#define IN(i) const F r##i = *ROW(from, behind, i);
#define PAIR(a, b) const F t##a = LOW(r##a, r##b), t##b = HIGH(r##a, r##b);
#define FOUR(a, b, c, d)                                                                                                      \
  const F u##a = LOWS(t##a, t##c), u##b = HIGHS(t##a, t##c), u##c = LOWS(t##b, t##d), u##d = HIGHS(t##b, t##d);

/* Rows begin so many elements `behind` each other in `from`, columns so many `ahead` of each other in `to`. */
TSC_FN void SQUARE(whole_square)(void *to, int64_t ahead, const void *from, int64_t behind) {
  EACH(IN) PAIRS(PAIR) FOURS(FOUR) PARTS(PART) EACH(OUT)
}

/* One of fewer rows or columns, as the function below; no part of its callers, which have others in their loops. */
TSC_UNUSED static __attribute__((noinline)) void SQUARE(part_of_square)(void *to, int64_t ahead, const void *from,
                                                                         int64_t behind, int64_t rows, int64_t columns,
                                                                         int64_t stored) {
  typedef int32_t word __attribute__((may_alias));
  F read[TSC_LANES] = {{0}}, turned[TSC_LANES];
  for (int64_t i = 0; i < rows; i++) {
    const word *row = (const word *)ROW(from, behind, i);
    if (TSC_JOIN(TSC_HAS_MASKS_, TSC_LANES)) read[i] = (F)TSC_JOIN(tsc_masked_load, TSC_LANES)(row, columns);
    else for (int64_t j = 0; j < columns; j++) ((word *)&read[i])[j] = row[j];
  }
  SQUARE(whole_square)(turned, TSC_LANES, read, TSC_LANES);
  for (int64_t j = 0; j < columns; j++) {
    word *column = (word *)TARGET(to, ahead, j);
    if (stored == TSC_LANES) *(FU *)column = turned[j];
    else
#if TSC_LANES == 16
    if (TSC_HAS_MASKS_16) tsc_masked_store16(column, stored, (tsc_bits16)turned[j]);
    else
#endif
    for (int64_t i = 0; i < stored; i++) column[i] = ((word *)&turned[j])[i];
  }
}

/* So many `rows` are read, and so many elements of each column `stored`: what lies behind the rows is zero. */
TSC_FN void SQUARE(square)(void *to, int64_t ahead, const void *from, int64_t behind, int64_t rows, int64_t columns,
                           int64_t stored) {
  if (rows == TSC_LANES && columns == TSC_LANES) SQUARE(whole_square)(to, ahead, from, behind);
  else SQUARE(part_of_square)(to, ahead, from, behind, rows, columns, stored);
}

#undef SQUARE
#undef F
#undef FU
#undef ROW
#undef TARGET
#undef LOW
#undef HIGH
#undef LOWS
#undef HIGHS
#undef EVEN
#undef ODD
#undef EACH
#undef PAIRS
#undef FOURS
#undef PARTS
#undef PART
#undef OUT
#undef IN
#undef PAIR
#undef FOUR
