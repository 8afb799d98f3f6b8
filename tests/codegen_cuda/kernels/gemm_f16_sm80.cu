// C[M, N] = A[M, K] B[K, N] in fp16 with fp32 sums, row-major. M any; N and K multiples of 8; A, B and C 16-byte aligned.
//
// A block of 8 warps makes 128 x 128 of C, a warp 64 x 32. A and B tiles of 32 along k come by cp.async through STAGES buffers: while one
// is multiplied, the next STAGES - 1 are under way. Grid (ceil(N / 128), ceil(M / 128)), 256 threads, SHARED bytes of shared memory.
#include "tsc_device.cuh"

using namespace tsc;

constexpr int BM = 128, BN = 128, BK = 32, WM = 64, WN = 32, STAGES = 4;
constexpr int WARPS_N = BN / WN, THREADS = 32 * (BM / WM) * WARPS_N;
constexpr u32 A_CHUNKS = BK / 8, B_CHUNKS = BN / 8, C_CHUNKS = WN / 8;  // of 16 bytes, in a row
constexpr u32 A_BYTES = BM * BK * 2, STAGE_BYTES = A_BYTES + BK * BN * 2;
[[maybe_unused]] constexpr u32 SHARED = STAGES * STAGE_BYTES;  // 65536
constexpr int MI = WM / 16, NI = WN / 8;

// Copy k tile `tile` to the stage at `stage`; what lies outside A or B becomes zero.
TSC_DEV void load_stage(u32 stage, int tile, const f16* a, const f16* b, int m0, int n0, int m, int n, int k) {
  const int thread = static_cast<int>(thread_index().x);
  TSC_UNROLL for (int i = 0; i < BM * static_cast<int>(A_CHUNKS) / THREADS; i++) {
    const int place = thread + i * THREADS, row = place / A_CHUNKS, chunk = place % A_CHUNKS;
    const bool inside = m0 + row < m && tile * BK + chunk * 8 < k;
    const f16* source = inside ? a + static_cast<i64>(m0 + row) * k + tile * BK + chunk * 8 : a;
    cp_async<16>(stage + swizzle(row, chunk, A_CHUNKS) * 16, source, inside);
  }
  TSC_UNROLL for (int i = 0; i < BK * static_cast<int>(B_CHUNKS) / THREADS; i++) {
    const int place = thread + i * THREADS, row = place / B_CHUNKS, chunk = place % B_CHUNKS;
    const bool inside = tile * BK + row < k && n0 + chunk * 8 < n;
    const f16* source = inside ? b + static_cast<i64>(tile * BK + row) * n + n0 + chunk * 8 : b;
    cp_async<16>(stage + A_BYTES + swizzle(row, chunk, B_CHUNKS) * 16, source, inside);
  }
}

TSC_KERNEL(gemm_f16_sm80, THREADS, 2, const f16* a, const f16* b, f16* c, int m, int n, int k) {
  const int lane = static_cast<int>(lane_index()), warp = static_cast<int>(thread_index().x) / 32;
  const int warp_m = warp / WARPS_N * WM, warp_n = warp % WARPS_N * WN;
  const int m0 = static_cast<int>(block_index().y) * BM, n0 = static_cast<int>(block_index().x) * BN;
  const int tiles = (k + BK - 1) / BK;
  const u32 shared = shared_base();

  float acc[MI][NI][4];
  clear_tile(acc);

  TSC_UNROLL for (int s = 0; s < STAGES - 1; s++) {
    if (s < tiles) load_stage(shared + s * STAGE_BYTES, s, a, b, m0, n0, m, n, k);
    cp_async_commit();
  }
  int reading = 0, writing = STAGES - 1;
  for (int tile = 0; tile < tiles; tile++) {
    cp_async_wait<STAGES - 2>();
    block_sync();  // all copies of this stage are in; all reads of the stage before it are over
    if (tile + STAGES - 1 < tiles) load_stage(shared + writing * STAGE_BYTES, tile + STAGES - 1, a, b, m0, n0, m, n, k);
    cp_async_commit();
    const u32 a_tile = shared + reading * STAGE_BYTES, b_tile = a_tile + A_BYTES;
    TSC_UNROLL for (int step = 0; step < BK / 16; step++) {
      u32 a_address[MI], b_address[NI / 2], a_part[MI][4], b_part[NI / 2][4];
      TSC_UNROLL for (int i = 0; i < MI; i++)
        a_address[i] = a_tile + swizzle(warp_m + i * 16 + lane % 16, step * 2 + lane / 16, A_CHUNKS) * 16;
      TSC_UNROLL for (int j = 0; j < NI / 2; j++)
        b_address[j] = b_tile + swizzle(step * 16 + lane % 16, warp_n / 8 + j * 2 + lane / 16, B_CHUNKS) * 16;
      ldmatrix_tile<false>(a_part, a_address);
      ldmatrix_tile<true>(b_part, b_address);
      mma_tile<f16>(acc, a_part, b_part);
    }
    reading = reading + 1 == STAGES ? 0 : reading + 1;
    writing = writing + 1 == STAGES ? 0 : writing + 1;
  }

  // Each warp turns 16 rows at a time through its own piece of shared memory, so that C is stored 16 bytes a lane.
  cp_async_wait<0>();
  block_sync();
  const u32 own = shared + warp * 16 * WN * 2;
  TSC_UNROLL for (int i = 0; i < MI; i++) {
    TSC_UNROLL for (int j = 0; j < NI; j++)
      TSC_UNROLL for (int h = 0; h < 2; h++)
        store_shared(own + swizzle(lane / 4 + h * 8, j, C_CHUNKS) * 16 + lane % 4 * 4, pack_f16(acc[i][j][h * 2], acc[i][j][h * 2 + 1]));
    warp_sync();  // the rows are whole
    TSC_UNROLL for (int p = 0; p < 16 * static_cast<int>(C_CHUNKS) / 32; p++) {
      const int place = lane + p * 32, row = place / C_CHUNKS, chunk = place % C_CHUNKS;
      const int to_m = m0 + warp_m + i * 16 + row, to_n = n0 + warp_n + chunk * 8;
      const b128 eight = load_shared<b128>(own + swizzle(row, chunk, C_CHUNKS) * 16);
      if (to_m < m && to_n < n) store_global(reinterpret_cast<b128*>(c + static_cast<i64>(to_m) * n + to_n), eight);
    }
    warp_sync();  // the rows are free again
  }
}
