// A pipeline of sm_90a, right and with one mistake each: TMA brings tiles of A and B, a warp group multiplies them, TMA stores
// the sums.
//
// D[64, 64] = sum over `tiles` of A_i B_i^T, f16 tiles of 64 x 64, 128-byte swizzled. 256 threads: one of the first warp group
// loads, the second multiplies. Maps: A and B {64, 64 tiles} by boxes {64, 64} of f16, D {64, 64} by {32, 64} of f32, all
// 128-byte swizzled.
#include "tsc_device.cuh"
#include "hopper.cuh"

using namespace tsc;

enum Mistake {
  NONE,
  NO_EMPTY_WAIT,       // the producer does not wait until a stage is free
  EARLY_RELEASE,       // the consumer frees a stage before wgmma_wait
  WAIT_OFF_BY_ONE,     // it waits for one group too few before it frees
  ALL_ARRIVE,          // 128 threads free a stage that one should
  EXPECTS_TOO_LITTLE,  // the bytes of A only
  EXPECTS_TOO_MUCH,
  WRONG_PARITY,  // the consumer waits for the phase before
  NO_FULL_WAIT,  // it does not wait at all
  WRONG_STAGE,   // it reads the stage beside
  READS_EARLY,   // accumulators are read before wgmma_wait
  NO_WGMMA_FENCE,
  NO_COMMIT,
  OVERWRITES_SOURCE,  // the second half of D goes to the first's place without bulk_wait_read
  LEAVES_EARLY,       // no bulk_wait_read at the end
  NO_ASYNC_FENCE,     // D's store without fence_async_shared
  NO_INIT_BARRIER,    // barriers are used without block_sync after their initialisation
};

constexpr int STAGES = 2;
constexpr u32 TILE = 64 * 128, STAGE = 2 * TILE, OUT = STAGES * STAGE, BARRIERS = OUT + TILE;

template <Mistake MISTAKE>
TSC_DEV void produce(const TensorMap& a, const TensorMap& b, int tiles) {
  const u32 base = shared_base();
  for (int tile = 0; tile < tiles; tile++) {
    const u32 stage = static_cast<u32>(tile % STAGES), round = static_cast<u32>(tile / STAGES);
    const u32 full = base + BARRIERS + 8 * stage;
    if (MISTAKE != NO_EMPTY_WAIT) mbarrier_wait(full + 8 * STAGES, (round & 1) ^ 1);
    mbarrier_arrive_expect(full, MISTAKE == EXPECTS_TOO_LITTLE ? TILE : MISTAKE == EXPECTS_TOO_MUCH ? 2 * STAGE : STAGE);
    tma_load(base + stage * STAGE, a, full, {0, tile * 64});
    tma_load(base + stage * STAGE + TILE, b, full, {0, tile * 64});
  }
}

template <Mistake MISTAKE>
TSC_DEV void consume(float (&d)[32], int tiles) {
  const u32 base = shared_base(), thread = thread_index().x - 128;
  TSC_UNROLL for (int i = 0; i < 32; i++) d[i] = 0.0f;
  for (int tile = 0; tile < tiles; tile++) {
    const u32 stage = static_cast<u32>(tile % STAGES), parity = static_cast<u32>(tile / STAGES & 1);
    const u32 full = base + BARRIERS + 8 * stage;
    const u32 place = base + (MISTAKE == WRONG_STAGE ? stage ^ 1 : stage) * STAGE;
    if (MISTAKE != NO_FULL_WAIT) mbarrier_wait(full, MISTAKE == WRONG_PARITY ? parity ^ 1 : parity);
    wgmma_pin(d);
    if (MISTAKE != NO_WGMMA_FENCE) wgmma_fence();
    const u64 a = wgmma_descriptor<128>(place, 0, 1024), b = wgmma_descriptor<128>(place + TILE, 0, 1024);
    TSC_UNROLL for (u32 step = 0; step < 4; step++) {
      wgmma<f16, 64>(d, wgmma_advance(a, 32 * step), wgmma_advance(b, 32 * step));
    }
    if (MISTAKE != NO_COMMIT) wgmma_commit();
    if (MISTAKE == EARLY_RELEASE && thread == 0) mbarrier_arrive(full + 8 * STAGES);
    if (MISTAKE == WAIT_OFF_BY_ONE)
      wgmma_wait<1>();
    else if (MISTAKE != READS_EARLY || tile + 1 < tiles)
      wgmma_wait<0>();
    wgmma_pin(d);
    if (MISTAKE != EARLY_RELEASE && (thread == 0 || MISTAKE == ALL_ARRIVE)) mbarrier_arrive(full + 8 * STAGES);
  }
  if (MISTAKE == WAIT_OFF_BY_ONE) wgmma_wait<0>();
  wgmma_pin(d);
}

// Half h of D, 32 columns of f32, is a box of 64 rows of 128 bytes.
template <Mistake MISTAKE>
TSC_DEV void store(const float (&d)[32], const TensorMap& out) {
  const u32 box = shared_base() + OUT, thread = thread_index().x - 128, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  TSC_UNROLL for (u32 half = 0; half < 2; half++) {
    if (half == 1) {
      if (MISTAKE != OVERWRITES_SOURCE && thread == 0) bulk_wait_read<0>();
      named_barrier_sync(1, 128);
    }
    TSC_UNROLL for (u32 j = 0; j < 4; j++) {
      TSC_UNROLL for (u32 q = 0; q < 4; q++) {
        const u32 place = (row + q / 2 * 8) * 128 + (j * 8 + lane % 4 * 2 + q % 2) * 4;
        store_shared(box + swizzled<128>(place), d[(half * 4 + j) * 4 + q]);
      }
    }
    if (MISTAKE != NO_ASYNC_FENCE) fence_async_shared();
    named_barrier_sync(1, 128);
    if (thread == 0) {
      tma_store(out, box, {static_cast<i32>(32 * half), 0});
      bulk_commit();
    }
  }
  if (MISTAKE == READS_EARLY) wgmma_wait<0>();
  if (MISTAKE != LEAVES_EARLY && thread == 0) bulk_wait_read<0>();
}

template <Mistake MISTAKE>
TSC_DEV void pipeline(const TensorMap& a, const TensorMap& b, const TensorMap& out, int tiles) {
  if (thread_index().x == 0) {
    for (u32 stage = 0; stage < 2 * STAGES; stage++) mbarrier_init(shared_base() + BARRIERS + 8 * stage, 1);
    mbarrier_fence_init();
  }
  if (MISTAKE != NO_INIT_BARRIER) block_sync();
  if (thread_index().x < 128) {
    registers_decrease<40>();
    if (thread_index().x == 0) produce<MISTAKE>(a, b, tiles);
  } else {
    registers_increase<232>();
    float d[32];
    consume<MISTAKE>(d, tiles);
    store<MISTAKE>(d, out);
  }
}

#define PIPELINE(mistake)                                                                                    \
  TSC_KERNEL(pipeline_##mistake, 256, 1, const TSC_GRID_CONST TensorMap a, const TSC_GRID_CONST TensorMap b, \
             const TSC_GRID_CONST TensorMap out, int tiles) {                                                \
    pipeline<mistake>(a, b, out, tiles);                                                                     \
  }
PIPELINE(NONE)
PIPELINE(NO_EMPTY_WAIT)
PIPELINE(EARLY_RELEASE)
PIPELINE(WAIT_OFF_BY_ONE)
PIPELINE(ALL_ARRIVE)
PIPELINE(EXPECTS_TOO_LITTLE)
PIPELINE(EXPECTS_TOO_MUCH)
PIPELINE(WRONG_PARITY)
PIPELINE(NO_FULL_WAIT)
PIPELINE(WRONG_STAGE)
PIPELINE(READS_EARLY)
PIPELINE(NO_WGMMA_FENCE)
PIPELINE(NO_COMMIT)
PIPELINE(OVERWRITES_SOURCE)
PIPELINE(LEAVES_EARLY)
PIPELINE(NO_ASYNC_FENCE)
PIPELINE(NO_INIT_BARRIER)

// A thread reads back what its bulk store wrote: after bulk_wait it may, after bulk_wait_read it may not.
template <bool READ>
TSC_DEV void read_back(u32* out) {
  store_shared(shared_base() + 16 * thread_index().x, b128{{1, 2, 3, 4}});
  fence_async_shared();
  warp_sync();
  if (thread_index().x != 0) return;
  bulk_store(out, shared_base(), 512);
  bulk_commit();
  if (READ)
    bulk_wait_read<0>();
  else
    bulk_wait<0>();
  store_global(out + 128, load_global(out) + 1);
}
TSC_KERNEL(reads_back, 32, 1, u32* out) { read_back<false>(out); }
TSC_KERNEL(reads_back_early, 32, 1, u32* out) { read_back<true>(out); }

// Protocol mistakes of a single primitive.
TSC_KERNEL(not_initialised, 32, 1, int) { mbarrier_arrive(shared_base()); }
TSC_KERNEL(overwritten, 32, 1, int) {
  if (thread_index().x == 0) mbarrier_init(shared_base(), 32);
  block_sync();
  if (thread_index().x == 0) store_shared(shared_base() + 4, 7u);
  block_sync();
  mbarrier_arrive(shared_base());
}
TSC_KERNEL(nobody_arrives, 64, 1, int) {
  if (thread_index().x == 0) {
    mbarrier_init(shared_base(), 33);
    mbarrier_fence_init();
  }
  block_sync();
  if (thread_index().x < 32) mbarrier_arrive(shared_base());
  mbarrier_wait(shared_base(), 0);
}
TSC_KERNEL(one_too_many, 64, 1, int) {
  if (thread_index().x == 0) {
    mbarrier_init(shared_base(), 63);
    mbarrier_fence_init();
    mbarrier_expect(shared_base(), 16);
  }
  block_sync();
  mbarrier_arrive(shared_base());
}
TSC_KERNEL(wait_without_arrive, 32, 1, int) { cluster_wait(); }
TSC_KERNEL(leaves_its_neighbour, 32, 1, u32* out) {
  store_shared(shared_base() + 4 * thread_index().x, thread_index().x);
  cluster_sync();
  if (cluster_rank() == 1) return;
  for (int i = 0; i < 100; i++) mbarrier_fence_init();
  block_sync();
  store_global(out + thread_index().x, load_cluster<u32>(map_shared(shared_base() + 4 * thread_index().x, 1)));
}
TSC_KERNEL(remote_without_sync, 32, 1, u32* out) {
  store_shared(shared_base() + 4 * thread_index().x, thread_index().x);
  const u32 value = load_cluster<u32>(map_shared(shared_base() + 4 * thread_index().x, cluster_rank() ^ 1));
  cluster_sync();
  store_global(out + cluster_rank() * 32 + thread_index().x, value);
}
TSC_KERNEL(groups_differ, 128, 1, int) {
  float d[4] = {0, 0, 0, 0};
  wgmma_fence();
  wgmma<f16, 8>(d, wgmma_descriptor<0>(shared_base() + thread_index().x / 32 * 16, 128, 128),
                wgmma_descriptor<0>(shared_base(), 128, 128));
}
TSC_KERNEL(begins_within_the_pattern, 128, 1, int) {
  float d[4] = {0, 0, 0, 0};
  wgmma_fence();
  wgmma<f16, 8>(d, wgmma_descriptor<128>(shared_base() + 128, 0, 1024), wgmma_descriptor<128>(shared_base(), 0, 1024));
}
