// ldmatrix and mma: the whole warp's work, done by the lane that comes last.
#include "state.hpp"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace tsc::emu {

namespace {

struct LoadMatrix {
  u32* r;
  const u32* row_address;
};

struct Multiply {
  void* c;
  const u32 *a, *b;
};

// Eight numbers at once; a machine without such registers splits it.
typedef float Floats __attribute__((vector_size(32)));
typedef i32 Ints __attribute__((vector_size(32)));

// `count` 32-bit words of a fragment's row as numbers the multiplication runs on.
void widen(float* out, const u32* words, u32 count, int kind) {
  if (kind == 2) {
    for (u32 i = 0; i < count; i++) {
      const u32 bits = words[i] & 0xffffe000;
      memcpy(out + i, &bits, 4);
    }
  } else if (kind == 1) {
    for (u32 i = 0; i < count; i++) {
      const u32 low = words[i] << 16, high = words[i] & 0xffff0000;
      memcpy(out + 2 * i, &low, 4);
      memcpy(out + 2 * i + 1, &high, 4);
    }
  } else {
#if defined(__F16C__)
    for (u32 i = 0; i < count; i += 4)
      _mm256_storeu_ps(out + 2 * i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(words + i))));
#else
    for (u32 i = 0; i < count; i++) {
      out[2 * i] = float_from_f16(static_cast<u16>(words[i]));
      out[2 * i + 1] = float_from_f16(static_cast<u16>(words[i] >> 16));
    }
#endif
  }
}

void widen(i32* out, const u32* words, u32 count, int kind) {
  const u8* const bytes = reinterpret_cast<const u8*>(words);
  for (u32 i = 0; i < 4 * count; i++) out[i] = kind == 3 ? static_cast<i8>(bytes[i]) : bytes[i];
}

// c[rows][columns] += a[rows][depth] b[depth][columns], k ascending for every number.
template <class Vector, class T>
void multiply(T* c, const T* a, const T* b, u32 rows, u32 columns, u32 depth) {
  for (u32 row = 0; row < rows; row++)
    for (u32 column = 0; column < columns; column += 8) {
      T* const place = c + row * columns + column;
      Vector sum, factor;
      memcpy(&sum, place, sizeof sum);
      for (u32 k = 0; k < depth; k++) {
        memcpy(&factor, b + k * columns + column, sizeof factor);
        sum += factor * a[row * depth + k];
      }
      memcpy(place, &sum, sizeof sum);
    }
}

template <class Vector, class T>
void multiply_tile(const Warp& warp, u32 mi, u32 ni, u32 depth, int kind) {
  const u32 rows = 16 * mi, columns = 8 * ni;
  std::vector<float>& scratch = cluster->scratch;
  const size_t needed = size_t{rows} * columns + size_t{rows} * depth + size_t{columns} * depth + 8 * (rows + columns) + depth;
  if (scratch.size() < needed) scratch.resize(needed);
  T* const c = reinterpret_cast<T*>(scratch.data());
  T* const a = c + rows * columns;
  T* const b = a + rows * depth;
  u32* const a_words = reinterpret_cast<u32*>(b + columns * depth);
  u32* const b_words = a_words + 8 * rows;
  T* const line = reinterpret_cast<T*>(b_words + 8 * columns);
  for (u32 lane = 0; lane < 32; lane++) {
    const Multiply& part = *static_cast<const Multiply*>(warp.slot[lane]);
    const u32 g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < mi; i++) {
      const u32* const fragment = part.a + 4 * i;
      u32* const low = a_words + (16 * i + g) * 8 + t;
      low[0] = fragment[0];
      low[64] = fragment[1];
      low[4] = fragment[2];
      low[68] = fragment[3];
    }
    for (u32 j = 0; j < ni; j++) {
      b_words[(8 * j + g) * 8 + t] = part.b[2 * j];
      b_words[(8 * j + g) * 8 + t + 4] = part.b[2 * j + 1];
    }
    for (u32 i = 0; i < mi; i++)
      for (u32 j = 0; j < ni; j++) {
        const T* const fragment = static_cast<const T*>(part.c) + (i * ni + j) * 4;
        memcpy(c + (16 * i + g) * columns + 8 * j + 2 * t, fragment, 8);
        memcpy(c + (16 * i + g + 8) * columns + 8 * j + 2 * t, fragment + 2, 8);
      }
  }
  for (u32 row = 0; row < rows; row++) widen(a + row * depth, a_words + row * 8, 8, kind);
  for (u32 column = 0; column < columns; column++) {
    widen(line, b_words + column * 8, 8, kind);
    for (u32 k = 0; k < depth; k++) b[k * columns + column] = line[k];
  }
  multiply<Vector>(c, a, b, rows, columns, depth);
  for (u32 lane = 0; lane < 32; lane++) {
    const Multiply& part = *static_cast<const Multiply*>(warp.slot[lane]);
    const u32 g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < mi; i++)
      for (u32 j = 0; j < ni; j++) {
        T* const fragment = static_cast<T*>(part.c) + (i * ni + j) * 4;
        memcpy(fragment, c + (16 * i + g) * columns + 8 * j + 2 * t, 8);
        memcpy(fragment + 2, c + (16 * i + g + 8) * columns + 8 * j + 2 * t, 8);
      }
  }
}

}  // namespace

void ldmatrix(u32* r, const u32* row_address, int tiles, int count, bool transposed, u32 at) {
  LoadMatrix mine{r, row_address};
  if (!collective("ldmatrix", &mine, at)) return;
  const Warp& warp = *self->warp;
  const auto lane_of = [&](u32 lane) -> const LoadMatrix& { return *static_cast<const LoadMatrix*>(warp.slot[lane]); };
  for (int tile = 0; tile < tiles; tile++)
    for (int m = 0; m < count; m++) {
      alignas(16) u16 elements[8][8];
      u32 address[8];
      for (u32 row = 0; row < 8; row++) {
        Fiber& reader = warp.lanes[8 * static_cast<u32>(m) + row];
        address[row] = lane_of(reader.lane).row_address[tile];
        Block* owner;
        memcpy(elements[row], shared_at(address[row], 16, 16, at, &owner), 16);
        if (Race* race = cluster->launch->race)
          race->shared(*owner, (address[row] & 0xffffff) - shared_window_base, 16,
                       {&reader, reader.index, reader.clock.own[PROGRAM], TSC_EMU_READ, at, false});
      }
      if (cluster->launch->options.count) cluster->tally.rows(address, at);
      for (u32 lane = 0; lane < 32; lane++) {
        const u32 g = lane / 4, t = lane % 4;
        u32& out = lane_of(lane).r[tile * count + m];
        if (transposed)
          out = elements[2 * t][g] | static_cast<u32>(elements[2 * t + 1][g]) << 16;
        else
          memcpy(&out, &elements[g][2 * t], 4);
      }
    }
}

void mma(void* c, const u32* a, const u32* b, int mi, int ni, int kind, u32 at) {
  Multiply mine{c, a, b};
  if (!collective("mma_tile", &mine, at)) return;
  cluster->mma_instructions += static_cast<u64>(mi) * static_cast<u64>(ni);
  const u32 depth = kind < 2 ? 16 : kind == 2 ? 8 : 32;
  if (kind < 3)
    multiply_tile<Floats, float>(*self->warp, static_cast<u32>(mi), static_cast<u32>(ni), depth, kind);
  else
    multiply_tile<Ints, i32>(*self->warp, static_cast<u32>(mi), static_cast<u32>(ni), depth, kind);
}

}  // namespace tsc::emu
