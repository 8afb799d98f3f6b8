// C[M, N] = A[M, K] B[K, N] in bf16 with fp32 sums, row-major. M any; N and K multiples of 8; A, B and C 16-byte aligned.
//
// A block makes 128 x 256 of C. Its first warp group is the producer: one thread has TMA fill STAGES buffers of 64 along k. The other two
// are consumers: each multiplies 64 rows by wgmma, A k-major, B mn-major, both 128-byte swizzled. `full` barriers say that a stage has
// landed, `empty` ones that all 8 consumer warps are done with it. Tensor maps, innermost axis first, all 128-byte swizzled:
// A {K, M} by boxes {64, 128}, B {N, K} by {64, 64}, C {N, M} by {64, 16}. Grid (ceil(N / 256), ceil(M / 128)), 384 threads, SHARED bytes.
#include "tsc_device.cuh"
#include "hopper.cuh"

using namespace tsc;

constexpr int BM = 128, BN = 256, BK = 64, STAGES = 4, PANEL = 64;  // a panel: what 128 bytes hold
constexpr u32 SPAN = 128, ROWS8 = 8 * SPAN;
constexpr u32 A_BYTES = BM * BK * 2, B_BYTES = BK * BN * 2, STAGE_BYTES = A_BYTES + B_BYTES, PANEL_BYTES = BK * SPAN;
constexpr u32 OUT_BYTES = 16 * SPAN;  // a warp's rows of one panel of C
constexpr u32 OUT = STAGES * STAGE_BYTES, BARRIERS = OUT + 8 * 2 * OUT_BYTES;
[[maybe_unused]] constexpr u32 SHARED = BARRIERS + 2 * STAGES * 8;  // 229440

TSC_DEV u32 full(int stage) { return shared_base() + BARRIERS + stage * 8; }
TSC_DEV u32 empty(int stage) { return full(stage) + STAGES * 8; }

// The stage of a k tile, and how many times all stages were gone through before it.
struct Turn {
  int stage, round;
  TSC_DEV void next() {
    if (++stage == STAGES) stage = 0, round++;
  }
};

TSC_DEV void produce(const TensorMap& a_map, const TensorMap& b_map, int m0, int n0, int tiles) {
  Turn turn = {0, 0};
  for (int tile = 0; tile < tiles; tile++, turn.next()) {
    const u32 a_tile = shared_base() + turn.stage * STAGE_BYTES, b_tile = a_tile + A_BYTES, barrier = full(turn.stage);
    mbarrier_wait(empty(turn.stage), (turn.round + 1) & 1);  // at once in the first round
    mbarrier_arrive_expect(barrier, A_BYTES + B_BYTES);
    tma_load<2>(a_tile, a_map, barrier, {tile * BK, m0});
    TSC_UNROLL for (int p = 0; p < BN / PANEL; p++) tma_load<2>(b_tile + p * PANEL_BYTES, b_map, barrier, {n0 + p * PANEL, tile * BK});
  }
}

// acc = this consumer's 64 rows of A times B.
TSC_DEV void consume(float (&acc)[BN / 2], int consumer, int tiles) {
  const bool speaker = lane_index() == 0;
  Turn turn = {0, 0}, last = {0, 0};
  TSC_UNROLL for (int i = 0; i < BN / 2; i++) acc[i] = 0.0f;
  for (int tile = 0; tile < tiles; tile++, turn.next()) {
    const u32 a_tile = shared_base() + turn.stage * STAGE_BYTES, b_tile = a_tile + A_BYTES;
    const u64 a = wgmma_descriptor<SPAN>(a_tile + consumer * 64 * SPAN, 0, ROWS8);
    const u64 b = wgmma_descriptor<SPAN>(b_tile, PANEL_BYTES, ROWS8);
    mbarrier_wait(full(turn.stage), turn.round & 1);
    wgmma_pin(acc);
    wgmma_fence();
    TSC_UNROLL for (int step = 0; step < BK / 16; step++)
      wgmma<bf16, BN, false, true>(acc, wgmma_advance(a, step * 32), wgmma_advance(b, step * 2 * ROWS8));
    wgmma_commit();
    wgmma_wait<1>();  // the tile before this one is done with
    if (tile != 0 && speaker) mbarrier_arrive(empty(last.stage));
    last = turn;
  }
  wgmma_wait<0>();
  wgmma_pin(acc);
}

// Each warp puts its 16 rows into shared memory, a panel at a time through two buffers, and TMA stores what lies inside C.
TSC_DEV void store(const float (&acc)[BN / 2], const TensorMap& c_map, int warp, int m0, int n0) {
  const u32 lane = lane_index();
  TSC_UNROLL for (int p = 0; p < BN / PANEL; p++) {
    const u32 out = shared_base() + OUT + (warp * 2 + p % 2) * OUT_BYTES;
    if (p >= 2) {
      if (lane == 0) bulk_wait_read<1>();
      warp_sync();  // the buffer is free
    }
    TSC_UNROLL for (int j = 0; j < PANEL / 8; j++)
      TSC_UNROLL for (int h = 0; h < 2; h++) {
        const int first = (p * (PANEL / 8) + j) * 4 + h * 2;
        store_shared(out + swizzled<SPAN>((lane / 4 + h * 8) * SPAN + j * 16 + lane % 4 * 4), pack_bf16(acc[first], acc[first + 1]));
      }
    fence_async_shared();
    warp_sync();  // the buffer is full
    if (lane == 0) {
      tma_store<2>(c_map, out, {n0 + p * PANEL, m0 + warp * 16});
      bulk_commit();
    }
  }
  if (lane == 0) bulk_wait_read<0>();
}

TSC_KERNEL(gemm_bf16_sm90a, 384, 1, const TSC_GRID_CONST TensorMap a_map, const TSC_GRID_CONST TensorMap b_map,
           const TSC_GRID_CONST TensorMap c_map, int k) {
  const int thread = static_cast<int>(thread_index().x), group = thread / 128;
  const int m0 = static_cast<int>(block_index().y) * BM, n0 = static_cast<int>(block_index().x) * BN, tiles = (k + BK - 1) / BK;
  if (thread == 0) {
    TSC_UNROLL for (int s = 0; s < STAGES; s++) {
      mbarrier_init(full(s), 1);
      mbarrier_init(empty(s), 8);
    }
    mbarrier_fence_init();
  }
  block_sync();
  if (group == 0) {
    registers_decrease<40>();
    if (thread == 0) produce(a_map, b_map, m0, n0, tiles);
  } else {
    registers_increase<232>();
    float acc[BN / 2];
    consume(acc, group - 1, tiles);
    store(acc, c_map, thread / 32 - 4, m0, n0);
  }
}
