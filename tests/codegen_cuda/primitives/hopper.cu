// Kernels that expose each primitive of hopper.cuh to the tests: raw bytes and registers in, raw bytes and registers out.
#include "tsc_device.cuh"
#include "hopper.cuh"

using namespace tsc;

// `bytes` (a multiple of 4) between global and the block's shared memory, by all threads; ready for the copy engine and wgmma.
TSC_DEV void fill_shared(u32 target, const u32* source, int bytes) {
  for (int i = static_cast<int>(thread_index().x); i < bytes / 4; i += static_cast<int>(block_size().x))
    store_shared(target + 4 * i, load_global(source + i));
  fence_async_shared();
  block_sync();
}
TSC_DEV void dump_shared(u32* target, u32 source, int bytes) {
  for (int i = static_cast<int>(thread_index().x); i < bytes / 4; i += static_cast<int>(block_size().x))
    store_global(target + i, load_shared<u32>(source + 4 * i));
}
// A barrier of one arrival a phase, for all threads of the block.
TSC_DEV void one_barrier(u32 barrier) {
  if (thread_index().x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_fence_init();
  }
  block_sync();
}

// ---- the copy engine: a box to shared memory and out as it lies; bytes as they lie to a box

template <int RANK>
TSC_DEV void load_box(const TensorMap& map, u32* out, int bytes, const i32 (&coordinate)[RANK]) {
  const u32 barrier = shared_base(), box = shared_base() + 1024;
  one_barrier(barrier);
  if (thread_index().x == 0) {
    tma_prefetch(map);
    mbarrier_arrive_expect(barrier, static_cast<u32>(bytes));
    tma_load(box, map, barrier, coordinate);
  }
  mbarrier_wait(barrier, 0);
  dump_shared(out, box, bytes);
}
template <int RANK>
TSC_DEV void store_box(const TensorMap& map, const u32* in, int bytes, const i32 (&coordinate)[RANK]) {
  const u32 box = shared_base() + 1024;
  fill_shared(box, in, bytes);
  if (thread_index().x == 0) {
    tma_store(map, box, coordinate);
    bulk_commit();
    bulk_wait<0>();
  }
}
TSC_KERNEL(load1, 64, 1, const TSC_GRID_CONST TensorMap map, u32* out, int bytes, int a) { load_box(map, out, bytes, {a}); }
TSC_KERNEL(load2, 64, 1, const TSC_GRID_CONST TensorMap map, u32* out, int bytes, int a, int b) {
  load_box(map, out, bytes, {a, b});
}
TSC_KERNEL(load3, 64, 1, const TSC_GRID_CONST TensorMap map, u32* out, int bytes, int a, int b, int c) {
  load_box(map, out, bytes, {a, b, c});
}
TSC_KERNEL(load4, 64, 1, const TSC_GRID_CONST TensorMap map, u32* out, int bytes, int a, int b, int c, int d) {
  load_box(map, out, bytes, {a, b, c, d});
}
TSC_KERNEL(load5, 64, 1, const TSC_GRID_CONST TensorMap map, u32* out, int bytes, int a, int b, int c, int d, int e) {
  load_box(map, out, bytes, {a, b, c, d, e});
}
TSC_KERNEL(store1, 64, 1, const TSC_GRID_CONST TensorMap map, const u32* in, int bytes, int a) {
  store_box(map, in, bytes, {a});
}
TSC_KERNEL(store2, 64, 1, const TSC_GRID_CONST TensorMap map, const u32* in, int bytes, int a, int b) {
  store_box(map, in, bytes, {a, b});
}
TSC_KERNEL(store3, 64, 1, const TSC_GRID_CONST TensorMap map, const u32* in, int bytes, int a, int b, int c) {
  store_box(map, in, bytes, {a, b, c});
}
TSC_KERNEL(store4, 64, 1, const TSC_GRID_CONST TensorMap map, const u32* in, int bytes, int a, int b, int c, int d) {
  store_box(map, in, bytes, {a, b, c, d});
}
TSC_KERNEL(store5, 64, 1, const TSC_GRID_CONST TensorMap map, const u32* in, int bytes, int a, int b, int c, int d, int e) {
  store_box(map, in, bytes, {a, b, c, d, e});
}

// Bytes in a row, through shared memory.
TSC_KERNEL(copy_bytes, 64, 1, u8* out, const u8* in, int bytes) {
  const u32 barrier = shared_base(), place = shared_base() + 16;
  one_barrier(barrier);
  if (thread_index().x == 0) {
    mbarrier_arrive_expect(barrier, static_cast<u32>(bytes));
    bulk_load(place, in, static_cast<u32>(bytes) - 16, barrier);
    bulk_load(place + static_cast<u32>(bytes) - 16, in + bytes - 16, 16, barrier);
    mbarrier_wait(barrier, 0);
    bulk_store(out, place, static_cast<u32>(bytes));
    bulk_commit();
    bulk_wait_read<0>();
  }
}

// Where each byte of a box goes, for each swizzle.
TSC_KERNEL(swizzles, 32, 1, u32* out, int bytes) {
  for (u32 i = thread_index().x; i < static_cast<u32>(bytes); i += 32) {
    store_global(out + i, swizzled<0>(i));
    store_global(out + bytes + i, swizzled<32>(i));
    store_global(out + 2 * bytes + i, swizzled<64>(i));
    store_global(out + 3 * bytes + i, swizzled<128>(i));
  }
}

// ---- wgmma: shared memory as given, operands where the descriptors (but for the address) say; d in and out by thread

TSC_KERNEL(descriptors, 32, 1, u64* out, int address, int leading, int stride) {
  const u32 a = static_cast<u32>(address), l = static_cast<u32>(leading), s = static_cast<u32>(stride);
  if (thread_index().x != 0) return;
  store_global(out, wgmma_descriptor<0>(a, l, s));
  store_global(out + 1, wgmma_descriptor<32>(a, l, s));
  store_global(out + 2, wgmma_descriptor<64>(a, l, s));
  store_global(out + 3, wgmma_descriptor<128>(a, l, s));
}

template <class T, int N, bool A_MN, bool B_MN>
TSC_DEV void multiply_shared(const u32* image, int bytes, u64 a, u64 b, int accumulate, typename MmaType<T>::Accumulator* out) {
  using Accumulator = typename MmaType<T>::Accumulator;
  fill_shared(shared_base(), image, bytes);
  Accumulator d[N / 2];
  Accumulator* const mine = out + thread_index().x * (N / 2);
  TSC_UNROLL for (int i = 0; i < N / 2; i++) d[i] = load_global(mine + i);
  wgmma_pin(d);
  wgmma_fence();
  wgmma<T, N, A_MN, B_MN>(d, wgmma_advance(a, shared_base()), wgmma_advance(b, shared_base()), accumulate != 0);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(d);
  TSC_UNROLL for (int i = 0; i < N / 2; i++) store_global(mine + i, d[i]);
}
template <class T, int N, bool B_MN>
TSC_DEV void multiply_registers(const u32* image, int bytes, const u32* fragments, u64 b, int accumulate,
                                typename MmaType<T>::Accumulator* out) {
  using Accumulator = typename MmaType<T>::Accumulator;
  fill_shared(shared_base(), image, bytes);
  Accumulator d[N / 2];
  u32 a[4];
  Accumulator* const mine = out + thread_index().x * (N / 2);
  TSC_UNROLL for (int i = 0; i < N / 2; i++) d[i] = load_global(mine + i);
  TSC_UNROLL for (int i = 0; i < 4; i++) a[i] = load_global(fragments + thread_index().x * 4 + i);
  wgmma_pin(d);
  wgmma_fence();
  wgmma<T, N, B_MN>(d, a, wgmma_advance(b, shared_base()), accumulate != 0);
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(d);
  TSC_UNROLL for (int i = 0; i < N / 2; i++) store_global(mine + i, d[i]);
}
#define SHARED(name, T, N, a_mn, b_mn)                                                                                \
  TSC_KERNEL(name, 128, 1, const u32* image, int bytes, u64 a, u64 b, int accumulate, MmaType<T>::Accumulator* out) { \
    multiply_shared<T, N, a_mn, b_mn>(image, bytes, a, b, accumulate, out);                                           \
  }
#define REGISTERS(name, T, N, b_mn)                                                                                          \
  TSC_KERNEL(name, 128, 1, const u32* image, int bytes, const u32* a, u64 b, int accumulate, MmaType<T>::Accumulator* out) { \
    multiply_registers<T, N, b_mn>(image, bytes, a, b, accumulate, out);                                                     \
  }
#define TYPE(T, N) SHARED(ss_##T##_##N, T, N, false, false) REGISTERS(rs_##T##_##N, T, N, false)
#define TYPES(N)   TYPE(f16, N) TYPE(bf16, N) TYPE(tf32, N) TYPE(i8, N) TYPE(u8, N)
// clang-format off
#define MAJORS(T, N)                           \
  SHARED(ss_##T##_##N##_tn, T, N, true, false) \
  SHARED(ss_##T##_##N##_nt, T, N, false, true) \
  SHARED(ss_##T##_##N##_tt, T, N, true, true)  \
  REGISTERS(rs_##T##_##N##_nt, T, N, true)
// clang-format on
TYPES(8)
TYPES(24)
TYPES(64)
TYPES(256)
MAJORS(f16, 64)
MAJORS(bf16, 64)
MAJORS(f16, 128)
MAJORS(bf16, 256)
#ifdef EVERY_N
// clang-format off
TYPE(f16, 16) TYPE(f16, 32) TYPE(f16, 40) TYPE(f16, 48) TYPE(f16, 56) TYPE(f16, 72) TYPE(f16, 80) TYPE(f16, 88)
TYPE(f16, 96) TYPE(f16, 104) TYPE(f16, 112) TYPE(f16, 120) TYPE(f16, 128) TYPE(f16, 136) TYPE(f16, 144) TYPE(f16, 152)
TYPE(f16, 160) TYPE(f16, 168) TYPE(f16, 176) TYPE(f16, 184) TYPE(f16, 192) TYPE(f16, 200) TYPE(f16, 208) TYPE(f16, 216)
TYPE(f16, 224) TYPE(f16, 232) TYPE(f16, 240) TYPE(f16, 248)
// clang-format on
#endif

    // ---- mbarrier: threads of two warps hand a number to and fro

    TSC_KERNEL(ping_pong, 64, 1, u32* out, int rounds) {
  const u32 there = shared_base(), back = there + 8, box = there + 16, thread = thread_index().x;
  if (thread == 0) {
    mbarrier_init(there, 32);
    mbarrier_init(back, 32);
    mbarrier_fence_init();
  }
  block_sync();
  if (thread < 32) {
    for (int round = 0; round < rounds; round++) {
      mbarrier_wait(back, static_cast<u32>(round & 1 ^ 1));
      store_shared(box + 4 * thread, static_cast<u32>(round) * 100 + thread);
      mbarrier_arrive(there);
    }
  } else {
    for (int round = 0; round < rounds; round++) {
      const u32 parity = static_cast<u32>(round & 1);
      if (!mbarrier_test(there, parity)) mbarrier_wait(there, parity);
      store_global(out + round * 32 + thread - 32, load_shared<u32>(box + 4 * (63 - thread)));
      mbarrier_arrive(back);
    }
  }
}

// The barrier's memory serves again after mbarrier_invalidate.
TSC_KERNEL(barrier_twice, 32, 1, u32* out) {
  const u32 barrier = shared_base();
  for (u32 turn = 0; turn < 2; turn++) {
    if (thread_index().x == 0) {
      mbarrier_init(barrier, 32);
      mbarrier_fence_init();
    }
    block_sync();
    mbarrier_expect(barrier, 0);
    mbarrier_arrive(barrier);
    mbarrier_wait(barrier, 0);
    block_sync();
    if (thread_index().x == 0) {
      mbarrier_invalidate(barrier);
      store_shared(barrier, turn);
    }
    block_sync();
    store_global(out + 32 * turn + thread_index().x, load_shared<u32>(barrier));
    block_sync();
  }
}

// ---- clusters

// Each block's rank, size, place and ids; then every block reads what its right neighbour wrote, and writes to its left one.
TSC_KERNEL(neighbours, 32, 1, u32* out) {
  const u32 lane = thread_index().x, rank = cluster_rank(), size = cluster_size(), base = shared_base();
  const Index3 block = block_index(), grid = grid_size();
  u32* const mine = out + ((block.z * grid.y + block.y) * grid.x + block.x) * 128;
  const Index3 in = block_in_cluster(), cluster = cluster_index(), clusters = cluster_grid();
  store_shared(base + 4 * lane, rank * 1000 + lane);
  cluster_sync();
  const u32 right = map_shared(base, (rank + 1) % size), left = map_shared(base + 128, (rank + size - 1) % size);
  store_global(mine + lane, load_cluster<u32>(right + 4 * lane));
  if (lane < 8) {
    const b128 quad = load_cluster<b128>(right + 16 * lane);
    store_cluster(left + 16 * lane, quad);
  }
  cluster_arrive();
  if (lane == 0) {
    const u32 ids[] = {rank, size, in.x, in.y, in.z, cluster.x, cluster.y, cluster.z, clusters.x, clusters.y, clusters.z};
    for (int i = 0; i < 11; i++) store_global(mine + 64 + i, ids[i]);
  }
  cluster_wait();
  store_global(mine + 32 + lane, load_shared<u32>(base + 128 + 4 * lane));
}

// Block 0 sends its two halves of a box to all; each block waits for its own copy, then tells block 0 that it has it.
TSC_KERNEL(multicast, 64, 1, const TSC_GRID_CONST TensorMap map, u32* out, int bytes) {
  const u32 full = shared_base(), taken = full + 8, box = full + 1024, rank = cluster_rank(), size = cluster_size();
  if (thread_index().x == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(taken, size);
    mbarrier_fence_init();
  }
  cluster_sync();
  for (int round = 0; round < 2; round++) {
    if (thread_index().x == 0) mbarrier_arrive_expect(full, 2 * static_cast<u32>(bytes));
    if (rank == 0 && thread_index().x == 0) {
      mbarrier_wait_cluster(taken, static_cast<u32>(round & 1 ^ 1));
      const u16 all = static_cast<u16>((1u << size) - 1);
      tma_load_multicast(box, map, full, {0, 2 * round}, all);
      tma_load_multicast(box + static_cast<u32>(bytes), map, full, {0, 2 * round + 1}, all);
    }
    mbarrier_wait(full, static_cast<u32>(round & 1));
    dump_shared(out + (rank * 2 + round) * (bytes / 2), box, 2 * bytes);
    block_sync();
    if (thread_index().x == 0) mbarrier_arrive_cluster(map_shared(taken, 0));
  }
  cluster_sync();
}

// ---- registers and named barriers: producers hand over through barrier 1

TSC_KERNEL(reallocate, 256, 1, u32* out) {
  const u32 thread = thread_index().x;
  if (thread < 128) {
    registers_decrease<24>();
    store_shared(shared_base() + 4 * thread, thread * thread);
    named_barrier_arrive(1, 256);
  } else {
    registers_increase<240>();
    named_barrier_sync(1, 256);
    store_global(out + thread - 128, load_shared<u32>(shared_base() + 4 * (255 - thread)));
  }
}
