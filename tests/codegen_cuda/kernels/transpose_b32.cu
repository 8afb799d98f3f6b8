// Y[c, r] = X[r, c] for numbers of 4 bytes, row-major, any size of at least 1. A block of 32 x 8 threads turns a tile of 32 x 32: grid
// (ceil(columns / 32), ceil(rows / 32)), SHARED bytes of shared memory. Column c of row r lies at place c ^ r of its row: both ways in and out
// touch 32 different banks.
#include "tsc_device.cuh"

using namespace tsc;

constexpr int TILE = 32, LINES = 8;
[[maybe_unused]] constexpr u32 SHARED = TILE * TILE * 4;  // 4096

TSC_DEV u32 place(int row, int column) { return static_cast<u32>(row * TILE + (column ^ row)) * 4; }

TSC_KERNEL(transpose_b32, TILE * LINES, 4, const u32* x, u32* y, int rows, int columns) {
  const int lane = static_cast<int>(thread_index().x), line = static_cast<int>(thread_index().y);
  const int row0 = static_cast<int>(block_index().y) * TILE, column0 = static_cast<int>(block_index().x) * TILE;
  const u32 shared = shared_base();

  TSC_UNROLL for (int i = line; i < TILE; i += LINES) {
    const bool inside = row0 + i < rows && column0 + lane < columns;
    store_shared(shared + place(i, lane), load_constant_or_zero(x + static_cast<i64>(row0 + i) * columns + column0 + lane, inside));
  }
  block_sync();
  TSC_UNROLL for (int i = line; i < TILE; i += LINES)
    if (column0 + i < columns && row0 + lane < rows)
      store_global(y + static_cast<i64>(column0 + i) * rows + row0 + lane, load_shared<u32>(shared + place(lane, i)));
}
