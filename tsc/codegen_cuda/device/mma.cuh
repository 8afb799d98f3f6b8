// Matrix fragments: the swizzle, ldmatrix, and mma as warp tiles of several instructions.
//
// All four mma shapes read the same *bytes*: one A tile is 16 rows of 32 bytes, one B tile 8 columns of 32 bytes (k runs along
// the bytes), whatever the type. With g = lane / 4 and t = lane % 4 a lane holds (PTX ISA 9.7.14.5.7 to .10):
//   A  a[0]: row g,     bytes 4t..4t+3      a[1]: row g + 8, bytes 4t..4t+3
//      a[2]: row g,     bytes 16+4t..       a[3]: row g + 8, bytes 16+4t..
//   B  b[0]: column g,  bytes 4t..4t+3      b[1]: column g,  bytes 16+4t..
//   C  c[0], c[1]: row g, columns 2t, 2t+1  c[2], c[3]: row g + 8, columns 2t, 2t+1
// 32 bytes are 16 numbers of f16 or bf16, 8 of tf32, 32 of int8.
#pragma once
#include "number.cuh"

namespace tsc {

// Place of 16-byte chunk `chunk` of row `row` in a row-major tile of `chunks` (a power of two, at least 2) chunks a row, in
// units of 16 bytes. For eight consecutive rows and one chunk the places lie in eight different groups of four banks: no
// conflicts for ldmatrix, nor for copies that write whole rows. A bijection on each group of rows that fills 128 bytes.
TSC_DEV u32 swizzle(u32 row, u32 chunk, u32 chunks) {
  const u32 phase = chunks >= 8 ? row & 7 : chunks == 4 ? (row >> 1) & 3 : (row >> 2) & 1;
  return row * chunks + (chunk ^ phase);
}

// ldmatrix (PTX ISA 9.7.14.5.15): load COUNT (1, 2, 4) matrices of 8 rows of 16 bytes. Lane 8 m + i gives the window address of
// row i of matrix m, less OFFSET (a multiple of 16; lanes from 8 COUNT on are ignored). Plain: r[m] of a lane is bytes
// 4t..4t+3 of row g of matrix m. Transposed, on 2-byte elements: r[m] is elements (2t, g) and (2t + 1, g), lower row in the
// lower half.
template <int COUNT, bool TRANSPOSED, int OFFSET = 0>
TSC_DEV void ldmatrix(u32 (&r)[COUNT], u32 row_address TSC_AT) {
  static_assert(COUNT == 1 || COUNT == 2 || COUNT == 4, "ldmatrix loads 1, 2 or 4 matrices");
#ifdef TSC_EMU
  const u32 moved = row_address + OFFSET;
  emu::ldmatrix(r, &moved, 1, COUNT, TRANSPOSED, at);
#else
  if constexpr (COUNT == 4 && !TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address), "n"(OFFSET)
                 : "memory");
  } else if constexpr (COUNT == 4) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row_address), "n"(OFFSET)
                 : "memory");
  } else if constexpr (COUNT == 2 && !TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2 + %3];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row_address), "n"(OFFSET)
                 : "memory");
  } else if constexpr (COUNT == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2 + %3];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(row_address), "n"(OFFSET)
                 : "memory");
  } else if constexpr (!TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1 + %2];"
                 : "=r"(r[0])
                 : "r"(row_address), "n"(OFFSET)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1 + %2];"
                 : "=r"(r[0])
                 : "r"(row_address), "n"(OFFSET)
                 : "memory");
  }
#endif
}

// TILES ldmatrix of COUNT matrices at once: r[i] from row_address[i].
template <bool TRANSPOSED, int TILES, int COUNT>
TSC_DEV void ldmatrix_tile(u32 (&r)[TILES][COUNT], const u32 (&row_address)[TILES] TSC_AT) {
#ifdef TSC_EMU
  emu::ldmatrix(&r[0][0], row_address, TILES, COUNT, TRANSPOSED, at);
#else
  TSC_UNROLL for (int i = 0; i < TILES; i++) ldmatrix<COUNT, TRANSPOSED>(r[i], row_address[i]);
#endif
}

// What an mma multiplies: KIND for the emulator, K numbers along k, Accumulator of C. i8 x i8 and u8 x u8 wrap around in 32
// bits.
template <class T>
struct MmaType;
template <>
struct MmaType<f16> {
  static constexpr int KIND = 0, K = 16;
  using Accumulator = float;
};
template <>
struct MmaType<bf16> {
  static constexpr int KIND = 1, K = 16;
  using Accumulator = float;
};
template <>
struct MmaType<tf32> {
  static constexpr int KIND = 2, K = 8;
  using Accumulator = float;
};
template <>
struct MmaType<i8> {
  static constexpr int KIND = 3, K = 32;
  using Accumulator = i32;
};
template <>
struct MmaType<u8> {
  static constexpr int KIND = 4, K = 32;
  using Accumulator = i32;
};

#ifndef TSC_EMU
#define TSC_MMA(shape_and_types, constraint)                                                                          \
  asm volatile("mma.sync.aligned." shape_and_types " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : constraint(c[0]), constraint(c[1]), constraint(c[2]), constraint(c[3])                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <class T>
TSC_DEV void mma_instruction(typename MmaType<T>::Accumulator (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  constexpr int kind = MmaType<T>::KIND;
  if constexpr (kind == 0) TSC_MMA("m16n8k16.row.col.f32.f16.f16.f32", "+f");
  if constexpr (kind == 1) TSC_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", "+f");
  if constexpr (kind == 2) TSC_MMA("m16n8k8.row.col.f32.tf32.tf32.f32", "+f");
  if constexpr (kind == 3) TSC_MMA("m16n8k32.row.col.s32.s8.s8.s32", "+r");
  if constexpr (kind == 4) TSC_MMA("m16n8k32.row.col.s32.u8.u8.s32", "+r");
}
#undef TSC_MMA
#endif

// C += A B for a warp tile of MI x NI instructions, one k step (mma.sync.aligned, PTX ISA 9.7.14.5.14): c[i][j] += a[i] b[j],
// fragments as above. b is either [NI][2], or [NI / 2][4] as ldmatrix x4 leaves two B tiles side by side. f16, bf16 and tf32
// products are exact and are summed in binary32; tf32 ignores the lower 13 bits of its operands.
template <class T, int MI, int NI, class Acc>
TSC_DEV void mma_tile(Acc (&c)[MI][NI][4], const u32 (&a)[MI][4], const u32 (&b)[NI][2] TSC_AT) {
#ifdef TSC_EMU
  emu::mma(&c[0][0][0], &a[0][0], &b[0][0], MI, NI, MmaType<T>::KIND, at);
#else
  TSC_UNROLL for (int i = 0; i < MI; i++) TSC_UNROLL for (int j = 0; j < NI; j++)
      mma_instruction<T>(c[i][j], a[i], b[j][0], b[j][1]);
#endif
}
template <class T, int MI, int NI, int PAIRS, class Acc>
TSC_DEV void mma_tile(Acc (&c)[MI][NI][4], const u32 (&a)[MI][4], const u32 (&b)[PAIRS][4] TSC_AT) {
  static_assert(NI == 2 * PAIRS, "one register quadruple of B serves two instructions");
#ifdef TSC_EMU
  emu::mma(&c[0][0][0], &a[0][0], &b[0][0], MI, NI, MmaType<T>::KIND, at);
#else
  TSC_UNROLL for (int i = 0; i < MI; i++) TSC_UNROLL for (int j = 0; j < NI; j++)
      mma_instruction<T>(c[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
#endif
}

// Zero accumulators of a warp tile.
template <int MI, int NI, class Acc>
TSC_DEV void clear_tile(Acc (&c)[MI][NI][4]) {
  TSC_UNROLL for (int i = 0; i < MI; i++) TSC_UNROLL for (int j = 0; j < NI; j++) TSC_UNROLL for (int q = 0; q < 4; q++)
      c[i][j][q] = Acc(0);
}

}  // namespace tsc
