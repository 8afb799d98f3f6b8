// One small kernel a primitive: registers in, registers out, so that a statement of the ISA's layout in NumPy can check them,
// in the emulator and on a device alike. Arrays of registers are indexed [thread][register].
#include "tsc_device.cuh"
using namespace tsc;

TSC_DEV u32 linear_thread() {
  return (thread_index().z * block_size().y + thread_index().y) * block_size().x + thread_index().x;
}

// ---- ids

// out[global thread] = thread index, block index, sizes, lane: 13 words.
TSC_KERNEL(ids, 1024, 1, u32* out) {
  const Index3 t = thread_index(), b = block_index(), n = block_size(), g = grid_size();
  const u32 block = (b.z * g.y + b.y) * g.x + b.x, thread = block * n.x * n.y * n.z + linear_thread();
  const u32 words[13] = {t.x, t.y, t.z, b.x, b.y, b.z, n.x, n.y, n.z, g.x, g.y, g.z, lane_index()};
  TSC_UNROLL for (int i = 0; i < 13; i++) store_global(out + thread * 13 + i, words[i]);
}

// ---- guarded access

// out[i] = source[i] through shared memory, zero bits from n on; shared memory is read by another thread than wrote it.
template <class T>
TSC_DEV void copy_guarded(const T* source, T* out, i32 n) {
  const u32 t = linear_thread(), threads = block_size().x, i = block_index().x * threads + t, shared = shared_base();
  store_shared(shared + t * sizeof(T), load_global_or_zero(source + i, static_cast<i32>(i) < n));
  block_sync();
  const u32 other = threads - 1 - t;
  const T value = load_shared_or_zero<T>(shared + other * sizeof(T), block_index().x * threads + other < static_cast<u32>(n));
  store_global_if(out + block_index().x * threads + other, value, true);
}
TSC_KERNEL(copy_1, 128, 1, const u8* source, u8* out, i32 n) { copy_guarded(source, out, n); }
TSC_KERNEL(copy_2, 128, 1, const u16* source, u16* out, i32 n) { copy_guarded(source, out, n); }
TSC_KERNEL(copy_4, 128, 1, const u32* source, u32* out, i32 n) { copy_guarded(source, out, n); }
TSC_KERNEL(copy_8, 128, 1, const b64* source, b64* out, i32 n) { copy_guarded(source, out, n); }
TSC_KERNEL(copy_16, 128, 1, const b128* source, b128* out, i32 n) { copy_guarded(source, out, n); }

// The same by cp.async of BYTES, two groups: the first is whole and waited for by itself, the second guarded.
template <int BYTES, class T>
TSC_DEV void copy_async(const T* source, T* out, i32 n) {
  static_assert(sizeof(T) == BYTES, "one copy a thread");
  const u32 t = linear_thread(), shared = shared_base(), threads = block_size().x;
  const bool inside = static_cast<i32>(t) < n;
  cp_async<BYTES>(shared + t * BYTES, source + t);
  cp_async_commit();
  cp_async<BYTES>(shared + (threads + t) * BYTES, source + t, inside);
  cp_async_commit();
  cp_async_wait<1>();
  block_sync();
  store_global(out + t, load_shared<T>(shared + (threads - 1 - t) * BYTES));
  cp_async_wait<0>();
  block_sync();
  store_global(out + threads + t, load_shared<T>(shared + (2 * threads - 1 - t) * BYTES));
}
TSC_KERNEL(copy_async_16, 128, 1, const b128* source, b128* out, i32 n) { copy_async<16>(source, out, n); }
TSC_KERNEL(copy_async_8, 128, 1, const b64* source, b64* out, i32 n) { copy_async<8>(source, out, n); }
TSC_KERNEL(copy_async_4, 128, 1, const u32* source, u32* out, i32 n) { copy_async<4>(source, out, n); }

// ---- swizzle and ldmatrix

// out[row * chunks + chunk] = swizzle(row, chunk, chunks).
TSC_KERNEL(swizzle_table, 32, 1, u32* out, i32 rows, i32 chunks) {
  for (i32 i = static_cast<i32>(linear_thread()); i < rows * chunks; i += 32)
    store_global(out + i, swizzle(static_cast<u32>(i / chunks), static_cast<u32>(i % chunks), static_cast<u32>(chunks)));
}

// A tile of 8 COUNT rows of 64 bytes (4 chunks), stored swizzled; matrix m is rows 8m.. of chunk `chunk`. out[lane][COUNT].
template <int COUNT, bool TRANSPOSED>
TSC_DEV void load_matrix(const b128* tile, u32* out, i32 chunk) {
  const u32 lane = lane_index(), shared = shared_base();
  for (u32 i = lane; i < 8 * COUNT * 4; i += 32) store_shared(shared + swizzle(i / 4, i % 4, 4) * 16, load_constant(tile + i));
  warp_sync();
  u32 r[COUNT];
  ldmatrix<COUNT, TRANSPOSED>(r, shared + swizzle(lane % (8 * COUNT), static_cast<u32>(chunk), 4) * 16);
  TSC_UNROLL for (int m = 0; m < COUNT; m++) store_global(out + lane * COUNT + m, r[m]);
}
TSC_KERNEL(ldmatrix_1, 32, 1, const b128* tile, u32* out, i32 chunk) { load_matrix<1, false>(tile, out, chunk); }
TSC_KERNEL(ldmatrix_2, 32, 1, const b128* tile, u32* out, i32 chunk) { load_matrix<2, false>(tile, out, chunk); }
TSC_KERNEL(ldmatrix_4, 32, 1, const b128* tile, u32* out, i32 chunk) { load_matrix<4, false>(tile, out, chunk); }
TSC_KERNEL(ldmatrix_1_transposed, 32, 1, const b128* tile, u32* out, i32 chunk) { load_matrix<1, true>(tile, out, chunk); }
TSC_KERNEL(ldmatrix_2_transposed, 32, 1, const b128* tile, u32* out, i32 chunk) { load_matrix<2, true>(tile, out, chunk); }
TSC_KERNEL(ldmatrix_4_transposed, 32, 1, const b128* tile, u32* out, i32 chunk) { load_matrix<4, true>(tile, out, chunk); }

// Two x4 loads at once: rows 0..31 of chunk 0 and of chunk 3. out[lane][2][4].
TSC_KERNEL(ldmatrix_tile_2, 32, 1, const b128* tile, u32* out) {
  const u32 lane = lane_index(), shared = shared_base();
  for (u32 i = lane; i < 128; i += 32) store_shared(shared + swizzle(i / 4, i % 4, 4) * 16, load_constant(tile + i));
  warp_sync();
  u32 r[2][4];
  const u32 address[2] = {shared + swizzle(lane, 0, 4) * 16, shared + swizzle(lane, 3, 4) * 16};
  ldmatrix_tile<false>(r, address);
  TSC_UNROLL for (int i = 0; i < 8; i++) store_global(out + lane * 8 + i, r[i / 4][i % 4]);
}

// ---- mma

// c[lane][MI][NI][4] += a[lane][MI][4] b[lane][NI][2], or with b as ldmatrix x4 leaves it, [NI / 2][4]: the same words in the
// same order.
template <class T, int MI, int NI, bool PAIRED>
TSC_DEV void multiply(const u32* a, const u32* b, typename MmaType<T>::Accumulator* c) {
  const u32 lane = lane_index();
  u32 ra[MI][4], rb[NI][2], paired[NI / 2 + (NI == 1)][4];
  typename MmaType<T>::Accumulator rc[MI][NI][4];
  TSC_UNROLL for (int i = 0; i < MI * 4; i++) ra[i / 4][i % 4] = load_constant(a + lane * (MI * 4) + i);
  TSC_UNROLL for (int i = 0; i < NI * 2; i++) paired[i / 4][i % 4] = rb[i / 2][i % 2] = load_constant(b + lane * (NI * 2) + i);
  TSC_UNROLL for (int i = 0; i < MI * NI * 4; i++) rc[i / (NI * 4)][i / 4 % NI][i % 4] =
      load_global(c + lane * (MI * NI * 4) + i);
  if constexpr (PAIRED)
    mma_tile<T>(rc, ra, paired);
  else
    mma_tile<T>(rc, ra, rb);
  TSC_UNROLL for (int i = 0; i < MI * NI * 4; i++)
      store_global(c + lane * (MI * NI * 4) + i, rc[i / (NI * 4)][i / 4 % NI][i % 4]);
}
#define MMA_KERNELS(name, T, A)                                                                                \
  TSC_KERNEL(mma_##name##_1x1, 32, 1, const u32* a, const u32* b, A* c) { multiply<T, 1, 1, false>(a, b, c); } \
  TSC_KERNEL(mma_##name##_2x3, 32, 1, const u32* a, const u32* b, A* c) { multiply<T, 2, 3, false>(a, b, c); } \
  TSC_KERNEL(mma_##name##_2x4, 32, 1, const u32* a, const u32* b, A* c) { multiply<T, 2, 4, true>(a, b, c); }
MMA_KERNELS(f16, f16, float)
MMA_KERNELS(bf16, bf16, float)
MMA_KERNELS(tf32, tf32, float)
MMA_KERNELS(s8, i8, i32)
MMA_KERNELS(u8, u8, i32)

// ---- numbers

// out[i] = the bits of in[i] in f16, bf16, tf32; and of pairs in[2 i], in[2 i + 1] packed.
TSC_KERNEL(round_to, 128, 1, const float* in, u16* half, u16* brain, u32* tf, u32* packed_half, u32* packed_brain, i32 n) {
  const i32 i = static_cast<i32>(block_index().x * block_size().x + linear_thread());
  if (i < n) {
    const float x = load_constant(in + i), y = load_constant(in + (i ^ 1));
    store_global(half + i, to_f16(x).bits);
    store_global(brain + i, to_bf16(x).bits);
    store_global(tf + i, to_tf32(x));
    store_global_if(packed_half + i / 2, pack_f16(x, y), i % 2 == 0);
    store_global_if(packed_brain + i / 2, pack_bf16(x, y), i % 2 == 0);
  }
}
TSC_KERNEL(widen, 128, 1, const u16* in, u32* half, u32* brain, i32 n) {
  const i32 i = static_cast<i32>(block_index().x * block_size().x + linear_thread());
  if (i < n) {
    const u16 bits = load_constant(in + i);
    store_global(half + i, float_bits(to_float(f16{bits})));
    store_global(brain + i, float_bits(to_float(bf16{bits})));
  }
}

// ---- shuffles, votes, reductions

// out[lane][7]: xor 5, down 3, from lane 7, ballot of the sign bit, and the sum, maximum and minimum of all lanes.
TSC_KERNEL(shuffles, 32, 1, const float* in, u32* out) {
  const u32 lane = lane_index();
  const float x = load_constant(in + lane);
  const u32 words[7] = {float_bits(shuffle_xor(x, 5)),  float_bits(shuffle_down(x, 3)),  float_bits(shuffle_from(x, 7)),
                        warp_ballot(x < 0.0f),          float_bits(warp_reduce<Sum>(x)), float_bits(warp_reduce<Max>(x)),
                        float_bits(warp_reduce<Min>(x))};
  TSC_UNROLL for (int i = 0; i < 7; i++) store_global(out + lane * 7 + i, words[i]);
}
// out[thread][2]: sum and maximum over the block's 4 warps.
TSC_KERNEL(block_reductions, 128, 1, const float* in, float* out) {
  const u32 t = linear_thread();
  const float x = load_constant(in + t);
  const float sum = block_reduce<Sum, 4>(x, shared_base());
  store_global(out + 2 * t, sum);
  store_global(out + 2 * t + 1, block_reduce<Max, 4>(x, shared_base()));
}

// ---- atomics

// Every thread adds to one float, one i32, one u64, and takes the maximum of an i32 and of a float; blocks add through shared
// memory too.
TSC_KERNEL(atomics, 128, 1, const float* in, float* sums, i32* count, u64* wide, i32* top, float* float_top) {
  const u32 t = linear_thread(), i = block_index().x * block_size().x + t, shared = shared_base();
  const float x = load_constant(in + i);
  if (t == 0) {
    store_shared(shared, 0.0f);
    store_shared(shared + 4, 0);
    store_shared(shared + 8, -1000000);
  }
  block_sync();
  atomic_add_shared(shared, x);
  atomic_add_shared(shared + 4, 1);
  atomic_max_shared(shared + 8, static_cast<i32>(x));
  block_sync();
  if (t == 0) {
    atomic_add(sums + 1, load_shared<float>(shared));
    atomic_add(count + 1, load_shared<i32>(shared + 4));
    atomic_max(top + 1, load_shared<i32>(shared + 8));
  }
  atomic_add(sums, x);
  atomic_add(count, 1);
  atomic_add(wide, static_cast<u64>(i) << 20);
  atomic_max(top, static_cast<i32>(x));
  atomic_max(float_top, x);
  if (atomic_compare_exchange(count + 2, static_cast<i32>(i), static_cast<i32>(i) + 1) == static_cast<i32>(i))
    atomic_exchange(count + 3, 7);
}
// Split accumulation: each block leaves a part, the last one to finish adds them in order.
TSC_KERNEL(last_block, 32, 1, const float* in, float* parts, u32* arrived, float* out) {
  const u32 lane = lane_index(), block = block_index().x, blocks = grid_size().x;
  store_global(parts + block * 32 + lane, load_constant(in + block * 32 + lane));
  warp_sync();
  u32 rank = 0;
  if (lane == 0) {
    fence_device();
    rank = atomic_add(arrived, 1u);
    fence_device();
  }
  rank = shuffle_from(rank, 0);
  warp_sync();
  if (rank == blocks - 1) {
    float sum = 0.0f;
    for (u32 b = 0; b < blocks; b++) sum += load_global(parts + b * 32 + lane);
    store_global(out + lane, sum);
  }
}

// ---- barriers

// Warp 0 produces, warps 1 to 3 consume, three rounds, by named barriers: full (1) and empty (2).
TSC_KERNEL(hand_over, 128, 1, const u32* in, u32* out, i32 rounds) {
  const u32 t = linear_thread(), warp = t / 32, lane = t % 32, shared = shared_base();
  for (i32 round = 0; round < rounds; round++) {
    if (warp == 0) {
      if (round != 0) named_barrier_sync(2, 128);
      store_shared(shared + lane * 4, load_constant(in + round * 32 + static_cast<i32>(lane)));
      named_barrier_arrive(1, 128);
    } else {
      named_barrier_sync(1, 128);
      store_global(out + (round * 3 + static_cast<i32>(warp) - 1) * 32 + static_cast<i32>(lane),
                   load_shared<u32>(shared + (31 - lane) * 4));
      if (round + 1 != rounds) named_barrier_arrive(2, 128);
    }
  }
}
