// Y[r, c] = exp(X[r, c] - max_c X[r, c]) / sum_c exp(...), fp32, row-major, any size of at least 1. A block of 256 threads a row: grid (rows), SHARED
// bytes of shared memory. One pass for maximum and sum together, a second one that reads the row again, from cache as a rule.
#include "tsc_device.cuh"

using namespace tsc;

constexpr int WARPS = 8, THREADS = 32 * WARPS;
[[maybe_unused]] constexpr u32 SHARED = WARPS * 8;  // 64

// The maximum of what was seen, and the sum of exp(x - maximum) over it.
struct Running {
  float maximum, sum;
};

TSC_DEV Running merge(Running x, Running y) {
  const float maximum = Max::apply(x.maximum, y.maximum);
  return {maximum, x.sum * fast_exp(x.maximum - maximum) + y.sum * fast_exp(y.maximum - maximum)};
}

TSC_KERNEL(softmax_f32, THREADS, 4, const float* x, float* y, int columns) {
  const int thread = static_cast<int>(thread_index().x);
  const i64 row = static_cast<i64>(block_index().x) * columns;
  const u32 shared = shared_base();

  Running running = {-3.0e38f, 0.0f};
  for (int c = thread; c < columns; c += THREADS) running = merge(running, {load_constant(x + row + c), 1.0f});
  TSC_UNROLL for (u32 distance = 16; distance != 0; distance /= 2)
    running = merge(running, {shuffle_xor(running.maximum, distance), shuffle_xor(running.sum, distance)});
  if (thread % 32 == 0) {
    store_shared(shared + thread / 32 * 8, running.maximum);
    store_shared(shared + thread / 32 * 8 + 4, running.sum);
  }
  block_sync();
  Running all = {load_shared<float>(shared), load_shared<float>(shared + 4)};
  TSC_UNROLL for (int w = 1; w < WARPS; w++)
    all = merge(all, {load_shared<float>(shared + w * 8), load_shared<float>(shared + w * 8 + 4)});

  const float scale = 1.0f / all.sum;
  for (int c = thread; c < columns; c += THREADS) store_global(y + row + c, fast_exp(load_constant(x + row + c) - all.maximum) * scale);
}
