// Kernels that are wrong on purpose, and beside each the same kernel right (BUG 0): what each mode of the emulator claims to
// find, it finds.
#include "tsc_device.cuh"
using namespace tsc;

// Neighbours exchange a word through shared memory. BUG 1: no barrier between store and load. BUG 2: none before the next
// round's store.
template <int BUG>
TSC_DEV void exchange_words(const u32* in, u32* out) {
  const u32 t = thread_index().x, shared = shared_base();
  for (u32 round = 0; round < 2; round++) {
    store_shared(shared + t * 4, load_constant(in + t) + round);
    if (BUG != 1) block_sync();
    store_global(out + round * 64 + t, load_shared<u32>(shared + (t ^ 33) * 4));
    if (BUG != 2) block_sync();
  }
}
TSC_KERNEL(exchange_right, 64, 1, const u32* in, u32* out) { exchange_words<0>(in, out); }
TSC_KERNEL(exchange_no_barrier, 64, 1, const u32* in, u32* out) { exchange_words<1>(in, out); }
TSC_KERNEL(exchange_overwrites, 64, 1, const u32* in, u32* out) { exchange_words<2>(in, out); }

// The same within a warp, which warp_sync orders; a shuffle does not.
template <int BUG>
TSC_DEV void exchange_in_warp(const u32* in, u32* out) {
  const u32 lane = lane_index(), shared = shared_base();
  store_shared(shared + lane * 4, load_constant(in + lane));
  if (BUG == 0) warp_sync();
  if (BUG == 1) store_global(out + 32 + lane, shuffle_xor(lane, 1));
  store_global(out + lane, load_shared<u32>(shared + (31 - lane) * 4));
}
TSC_KERNEL(warp_right, 32, 1, const u32* in, u32* out) { exchange_in_warp<0>(in, out); }
TSC_KERNEL(warp_no_sync, 32, 1, const u32* in, u32* out) { exchange_in_warp<1>(in, out); }

// Half warps that synchronise by themselves.
TSC_KERNEL(half_warps, 32, 1, const u32* in, u32* out) {
  const u32 lane = lane_index(), shared = shared_base(), mask = lane < 16 ? 0xffffu : 0xffff0000u;
  store_shared(shared + lane * 4, load_constant(in + lane));
  warp_sync(mask);
  store_global(out + lane, load_shared<u32>(shared + (lane ^ 15) * 4));
}
TSC_KERNEL(half_warps_cross, 32, 1, const u32* in, u32* out) {
  const u32 lane = lane_index(), shared = shared_base(), mask = lane < 16 ? 0xffffu : 0xffff0000u;
  store_shared(shared + lane * 4, load_constant(in + lane));
  warp_sync(mask);
  store_global(out + lane, load_shared<u32>(shared + (lane ^ 16) * 4));
}

// A pipeline of three stages. BUG 1: waits for one group too few. BUG 2: loads into the stage that is read. BUG 3: no barrier.
template <int BUG>
TSC_DEV void pipeline(const b128* in, u32* out, i32 steps) {
  const u32 t = thread_index().x, shared = shared_base();
  const auto load = [&](i32 step, i32 stage) {
    cp_async(shared + static_cast<u32>(stage) * 1024 + t * 16, in + step * 64 + static_cast<i32>(t), step < steps);
  };
  u32 sum = 0;
  for (i32 step = 0; step < 2; step++) {
    load(step, step);
    cp_async_commit();
  }
  for (i32 step = 0; step < steps; step++) {
    cp_async_wait<BUG == 1 ? 2 : 1>();
    if (BUG != 3) block_sync();
    load(step + 2, BUG == 2 ? step % 3 : (step + 2) % 3);
    cp_async_commit();
    sum += load_shared<u32>(shared + static_cast<u32>(step % 3) * 1024 + (t ^ 40) * 16);
  }
  store_global(out + t, sum);
}
TSC_KERNEL(pipeline_right, 64, 1, const b128* in, u32* out, i32 steps) { pipeline<0>(in, out, steps); }
TSC_KERNEL(pipeline_wait, 64, 1, const b128* in, u32* out, i32 steps) { pipeline<1>(in, out, steps); }
TSC_KERNEL(pipeline_stage, 64, 1, const b128* in, u32* out, i32 steps) { pipeline<2>(in, out, steps); }
TSC_KERNEL(pipeline_barrier, 64, 1, const b128* in, u32* out, i32 steps) { pipeline<3>(in, out, steps); }

// Adjacent 2-byte words by different threads share a bank, not memory: no race.
TSC_KERNEL(narrow_neighbours, 64, 1, const u16* in, u16* out) {
  const u32 t = thread_index().x, shared = shared_base();
  store_shared(shared + t * 2, load_constant(in + t));
  block_sync();
  store_global(out + t, load_shared<u16>(shared + (63 - t) * 2));
}

// ---- global memory

TSC_KERNEL(global_race, 32, 1, u32* out) { store_global(out + lane_index() / 2, block_index().x); }
TSC_KERNEL(blocks_race, 32, 1, u32* out) { store_global(out + lane_index(), block_index().x); }
TSC_KERNEL(constant_written, 32, 1, u32* out) {
  const u32 lane = lane_index();
  store_global(out + lane, lane);
  store_global(out + lane, load_constant(out + lane) + 1);
}
// The last block adds what the others left. BUG 1: nothing releases. BUG 2: the fence comes before the warp meets. BUG 3:
// nothing acquires.
template <int BUG>
TSC_DEV void add_last(float* parts, u32* arrived, float* out) {
  const u32 lane = lane_index(), block = block_index().x, blocks = grid_size().x;
  store_global(parts + block * 32 + lane, static_cast<float>(block + lane));
  if (BUG == 2) fence_device();
  warp_sync();
  u32 rank = 0;
  if (lane == 0) {
    if (BUG != 1 && BUG != 2) fence_device();
    rank = atomic_add(arrived, 1u);
    if (BUG != 3) fence_device();
  }
  rank = shuffle_from(rank, 0);
  warp_sync();
  if (rank == blocks - 1) {
    float sum = 0.0f;
    for (u32 b = 0; b < blocks; b++) sum += load_global(parts + b * 32 + lane);
    store_global(out + lane, sum);
  }
}
TSC_KERNEL(last_right, 32, 1, float* parts, u32* arrived, float* out) { add_last<0>(parts, arrived, out); }
TSC_KERNEL(last_no_release, 32, 1, float* parts, u32* arrived, float* out) { add_last<1>(parts, arrived, out); }
TSC_KERNEL(last_early_fence, 32, 1, float* parts, u32* arrived, float* out) { add_last<2>(parts, arrived, out); }
TSC_KERNEL(last_no_acquire, 32, 1, float* parts, u32* arrived, float* out) { add_last<3>(parts, arrived, out); }

TSC_KERNEL(store_past_end, 32, 1, u32* out, i32 n) {
  const i32 lane = static_cast<i32>(lane_index());
  if (lane <= n) store_global(out + lane, 1u);
}
TSC_KERNEL(load_past_end, 32, 1, const u32* in, u32* out, i32 n) {
  const i32 lane = static_cast<i32>(lane_index());
  store_global_if(out + lane, load_global_or_zero(in + lane, lane <= n), lane < n);
}
TSC_KERNEL(copy_past_end, 32, 1, const b128* in, u32* out, i32 n) {
  const u32 lane = lane_index();
  cp_async(shared_base() + lane * 16, in + lane, static_cast<i32>(lane) <= n);
  cp_async_wait_all();
  store_global_if(out + lane, load_shared<u32>(shared_base() + lane * 16), static_cast<i32>(lane) < n);
}
TSC_KERNEL(store_to_input, 32, 1, u32* in) { store_global(in + lane_index(), 1u); }
TSC_KERNEL(misaligned, 32, 1, const u32* in, u32* out) {
  const b64 pair = load_global(reinterpret_cast<const b64*>(in + 1 + lane_index()));
  store_global(out + lane_index(), pair.word[0]);
}

// ---- shared memory

TSC_KERNEL(shared_past_end, 32, 1, u32* out) {
  store_shared(shared_base() + lane_index() * 8, 1u);
  store_global_if(out, 1u, lane_index() == 0);
}
TSC_KERNEL(shared_unwritten, 32, 1, u32* out) {
  store_global(out + lane_index(), load_shared<u32>(shared_base() + lane_index() * 4));
}
TSC_KERNEL(shared_base_forgotten, 32, 1, u32* out) { store_global(out + lane_index(), load_shared<u32>(lane_index() * 4)); }

// ---- those who never meet

TSC_KERNEL(half_a_barrier, 64, 1, u32* out) {
  if (thread_index().x < 32)
    block_sync();
  else
    named_barrier_sync(1, 64);
  store_global(out, 1u);
}
TSC_KERNEL(left_before_barrier, 64, 1, u32* out) {
  if (thread_index().x >= 60) return;
  block_sync();
  store_global(out + thread_index().x, 1u);
}
TSC_KERNEL(divided_warp, 32, 1, u32* out) {
  const u32 lane = lane_index();
  u32 value;
  if (lane < 16)
    value = shuffle_xor(lane, 1);
  else
    value = warp_ballot(true);
  store_global(out + lane, value);
}
TSC_KERNEL(barrier_of_others, 128, 1, u32* out) {
  named_barrier_sync(1, thread_index().x < 32 ? 64 : 128);
  store_global(out, 1u);
}
TSC_KERNEL(spins, 32, 1, u32* out) {
  while (load_global(out) == 0) {
  }
}

// ---- bank conflicts and sectors

// Column reads of a 32 x 32 tile of words whose rows are `stride` words apart; global reads of every `step`-th word.
TSC_KERNEL(columns, 32, 1, const u32* in, u32* out, i32 stride, i32 step) {
  const u32 lane = lane_index(), shared = shared_base();
  for (u32 row = 0; row < 32; row++) store_shared(shared + (row * static_cast<u32>(stride) + lane) * 4, row);
  warp_sync();
  u32 sum = load_global(in + lane * static_cast<u32>(step));
  for (u32 column = 0; column < 32; column++) sum += load_shared<u32>(shared + (lane * static_cast<u32>(stride) + column) * 4);
  store_global(out + lane, sum);
}
// 16-byte rows of a tile of 64 bytes a row, read by ldmatrix in place or swizzled.
TSC_KERNEL(rows, 32, 1, u32* out, i32 swizzled) {
  const u32 lane = lane_index(), shared = shared_base();
  const auto place = [&](u32 row, u32 chunk) { return shared + (swizzled ? swizzle(row, chunk, 4) : row * 4 + chunk) * 16; };
  for (u32 chunk = 0; chunk < 4; chunk++) store_shared(place(lane, chunk), b128{{lane, chunk, 0, 0}});
  warp_sync();
  u32 r[4];
  ldmatrix<4, false>(r, place(lane, 2));
  store_global(out + lane, r[0]);
}

// What only the address sanitiser sees: an array of registers indexed past its end.
TSC_KERNEL(registers_past_end, 32, 1, const u32* in, u32* out, i32 n) {
  u32 r[4] = {1, 2, 3, 4};
  block_sync();
  for (i32 i = 0; i < n; i++) r[i] += load_constant(in + i);
  block_sync();
  store_global(out + lane_index(), r[0] + r[1] + r[2] + r[3]);
}
