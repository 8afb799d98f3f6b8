// The copy engine: boxes of tensors between global and shared memory.
#include <algorithm>

#include "hopper_state.hpp"

namespace tsc::emu {

namespace {

u32 element_bytes(const tsc_emu_tensor_map& map) {
  static constexpr u8 bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  return bytes[map.dtype];
}

u32 span_of(const tsc_emu_tensor_map& map) { return map.swizzle == 0 ? 0 : 16u << map.swizzle; }

u32 row_bytes(const tsc_emu_tensor_map& map) { return map.box[0] * element_bytes(map); }

u32 box_rows(const tsc_emu_tensor_map& map) {
  u32 rows = 1;
  for (u32 axis = 1; axis < map.rank; axis++) rows *= map.box[axis];
  return rows;
}

// What cuTensorMapEncodeTiled would refuse, and what the emulator does not know.
void check_map(const tsc_emu_tensor_map& map, int rank, u32 at) {
  if (map.magic != TSC_EMU_TENSOR_MAP_MAGIC) fail(TSC_EMU_PROTOCOL, at, "the tensor map is not one of the emulator's");
  if (map.rank != rank || rank < 1 || rank > 5)
    fail(TSC_EMU_PROTOCOL, at, "a copy of %d axes with a tensor map of %u", rank, map.rank);
  if (map.dtype > 9 || map.swizzle > 3 || map.fill != 0)
    fail(TSC_EMU_PROTOCOL, at,
         "the tensor map has type %u, swizzle %u and fill %u; the emulator knows types to 9, swizzles to 3 and fill 0",
         map.dtype, map.swizzle, map.fill);
  if (map.address % 16 != 0)
    fail(TSC_EMU_PROTOCOL, at, "the tensor begins at %llx, which is no multiple of 16",
         static_cast<unsigned long long>(map.address));
  for (int axis = 0; axis < rank; axis++) {
    if (map.box[axis] < 1 || map.box[axis] > 256)
      fail(TSC_EMU_PROTOCOL, at, "axis %d of the box has %u elements; 1 to 256 can be", axis, map.box[axis]);
    if (map.dims[axis] < 1 || map.dims[axis] > 1ull << 32)
      fail(TSC_EMU_PROTOCOL, at, "axis %d of the tensor has %llu elements", axis,
           static_cast<unsigned long long>(map.dims[axis]));
    if (axis > 0 && (map.strides[axis - 1] % 16 != 0 || map.strides[axis - 1] >= 1ull << 40))
      fail(TSC_EMU_PROTOCOL, at, "axis %d of the tensor has stride %llu; it must be a multiple of 16 below 2^40", axis,
           static_cast<unsigned long long>(map.strides[axis - 1]));
  }
  const u32 inner = row_bytes(map), span = span_of(map);
  if (inner % 16 != 0) fail(TSC_EMU_PROTOCOL, at, "the box's innermost axis has %u bytes, no multiple of 16", inner);
  if (span != 0 && inner != span)
    fail(TSC_EMU_PROTOCOL, at, "the box's innermost axis has %u bytes, but the swizzle %u", inner, span);
}

// Where a box may begin: see tma.cuh.
void check_start(const tsc_emu_tensor_map& map, const i32* coordinate, bool store, u32 at) {
  const int64_t byte = static_cast<int64_t>(coordinate[0]) * element_bytes(map);
  if (byte % 16 != 0)
    fail(TSC_EMU_MISALIGNED, at, "a box begins at byte %lld of the innermost axis, which is no multiple of 16",
         static_cast<long long>(byte));
  for (u32 axis = 0; store && axis < map.rank; axis++)
    if (coordinate[axis] < 0)
      fail(TSC_EMU_PROTOCOL, at, "a box is stored at coordinate %d of axis %u; it may not be negative", coordinate[axis], axis);
}

// Call part(offset in the box, its innermost row's global address, from, to) for every row of the box; bytes [from, to) of it
// are inside the tensor.
template <class Part>
void for_each_row(const tsc_emu_tensor_map& map, const i32* coordinate, Part part) {
  const u32 rows = box_rows(map), inner = row_bytes(map), bytes = element_bytes(map);
  const int64_t first = coordinate[0], size = static_cast<int64_t>(map.dims[0]), count = map.box[0];
  const int64_t low = std::min<int64_t>(std::max<int64_t>(-first, 0), count),
                high = std::max(std::min<int64_t>(size - first, count), low);
  for (u32 row = 0; row < rows; row++) {
    bool inside = high > low;
    u64 address = map.address + static_cast<u64>(first) * bytes;
    u32 rest = row;
    for (u32 axis = 1; axis < map.rank; axis++) {
      const int64_t index = coordinate[axis] + static_cast<int64_t>(rest % map.box[axis]);
      rest /= map.box[axis];
      inside = inside && 0 <= index && index < static_cast<int64_t>(map.dims[axis]);
      address += static_cast<u64>(index) * map.strides[axis - 1];
    }
    part(row * inner, reinterpret_cast<u8*>(address), inside ? static_cast<u32>(low) * bytes : 0,
         inside ? static_cast<u32>(high) * bytes : 0);
  }
}

void land(const Load& load) {
  const u32 inner = row_bytes(load.map), span = span_of(load.map);
  std::vector<u8> line(inner);
  for_each_row(load.map, load.coordinate, [&](u32 offset, const u8* from, u32 low, u32 high) {
    memset(line.data(), 0, inner);
    if (high > low) memcpy(line.data() + low, from + low, high - low);
    for (const Load::Target& target : load.targets)
      for (u32 byte = 0; byte < inner; byte += 16)
        memcpy(target.to + swizzle_bytes(offset + byte, span), line.data() + byte, 16);
  });
  const u32 bytes = inner * box_rows(load.map);
  for (const Load::Target& target : load.targets) {
    Mbarrier& barrier = *target.barrier;
    if (barrier.phase != target.phase)
      fail_for(*load.fiber, TSC_EMU_PROTOCOL, load.at,
               "phase %llu of the mbarrier at byte %u ended before the %u bytes of this copy landed: too few were expected",
               target.phase, barrier.offset, bytes);
    barrier.bytes -= bytes;
    barrier.next.add_actor(barrier.actor, target.time);
    settle(barrier, *load.fiber, load.at);
  }
}

void read(Store& store) {
  const u32 inner = row_bytes(store.map), span = span_of(store.map), bytes = inner * box_rows(store.map);
  store.data.resize(bytes);
  for (u32 byte = 0; byte < bytes; byte += 16) memcpy(store.data.data() + byte, store.from + swizzle_bytes(byte, span), 16);
  store.has_read = true;
}

void write(const Store& store) {
  for_each_row(store.map, store.coordinate, [&](u32 offset, u8* to, u32 low, u32 high) {
    if (high > low) memcpy(to + low, store.data.data() + offset + low, high - low);
  });
}

bool is_over(const Hopper& engine, const BulkWaiter& waiter) {
  for (const Store& store : engine.stores)
    if (store.fiber == waiter.fiber && store.group <= waiter.group && !(waiter.read && store.has_read)) return false;
  return true;
}

void wake_bulk(Hopper& engine) {
  std::vector<BulkWaiter>& waiting = engine.bulk_waiting;
  waiting.erase(std::remove_if(waiting.begin(), waiting.end(),
                               [&](const BulkWaiter& waiter) {
                                 if (!is_over(engine, waiter)) return false;
                                 wake(*waiter.fiber);
                                 return true;
                               }),
                waiting.end());
}

void trace_global(const void* address, u32 bytes, const Access& access) {
  const tsc_emu_options& options = cluster->launch->options;
  if (options.range_count == 0) return;
  const tsc_emu_range& range = options.ranges[cluster->hint];  // as check_global left it
  if (range.writable)
    cluster->launch->race->global(cluster->hint,
                                  static_cast<u64>(static_cast<const char*>(address) - static_cast<const char*>(range.base)),
                                  bytes, access, address);
}

u32 box_bytes(const tsc_emu_tensor_map& map) { return row_bytes(map) * box_rows(map); }

u32 box_alignment(const tsc_emu_tensor_map& map) { return map.swizzle == 0 ? 128 : 8 * span_of(map); }

void count(Traffic traffic, u64 bytes) {
  if (cluster->launch->options.count) cluster->tally.bulk(traffic, bytes);
}

// `blocks` as of tma_load.
void issue_load(const tsc_emu_tensor_map& map, const i32* coordinate, u32 target, u32 alignment, u32 barrier, u32 blocks,
                u32 at) {
  Hopper& engine = hopper();
  Race* const race = cluster->launch->race;
  Load load{self, at, map, {}, {}};
  memcpy(load.coordinate, coordinate, sizeof(i32) * map.rank);
  const u32 bytes = box_bytes(map);
  if (blocks >> cluster->blocks.size() != 0)
    fail(TSC_EMU_PROTOCOL, at, "a multicast to the blocks %04x of a cluster of %zu", blocks, cluster->blocks.size());
  if (blocks == 0 && (target >> 24 | barrier >> 24) != 0)
    fail(TSC_EMU_PROTOCOL, at, "a load without multicast goes to the own block");
  for (u32 rank = 0; rank < cluster->blocks.size(); rank++) {
    if (blocks != 0 ? !(blocks >> rank & 1) : rank != self->block->rank) continue;
    Block* owner;
    u8* const to = shared_at((target & 0xffffff) | (rank + 1) << 24, bytes, alignment, at, &owner);
    Mbarrier& signalled = find_mbarrier((barrier & 0xffffff) | (rank + 1) << 24, at);
    const u32 time = race ? ++signalled.time : 0;
    load.targets.push_back({&signalled, signalled.phase, time, to, bytes});
    if (race) {
      race->shared(*owner, (target & 0xffffff) - shared_window_base, bytes,
                   Race::by_actor(*self, signalled.actor, time, TSC_EMU_WRITE, at));
      signalled.next.add(*self);  // who sees the bytes comes after what came before the copy
    }
    count(SHARED_STORE, bytes);
    if (engine.lands_later()) memset(to, 0xff, bytes);
  }
  const Load::Target& first = load.targets.front();
  for_each_row(map, load.coordinate, [&](u32, const u8* from, u32 low, u32 high) {
    if (high <= low) return;
    check_global(from + low, high - low, false, 1, at);
    count(GLOBAL_LOAD, high - low);
    if (race) trace_global(from + low, high - low, Race::by_actor(*self, first.barrier->actor, first.time, TSC_EMU_READ, at));
  });
  if (engine.loads_land_later())
    engine.loads.push_back(std::move(load));
  else
    land(load);
}

void issue_store(const tsc_emu_tensor_map& map, const i32* coordinate, u32 source, u32 alignment, u32 at) {
  Hopper& engine = hopper();
  Race* const race = cluster->launch->race;
  const u32 bytes = box_bytes(map);
  Block* owner;
  const u8* const from = shared_at(source, bytes, alignment, at, &owner);
  Store store{self, at, engine.bulk_committed[self->index] + 1, map, {}, from, {}, false};
  memcpy(store.coordinate, coordinate, sizeof(i32) * map.rank);
  if (race)
    race->shared(*owner, (source & 0xffffff) - shared_window_base, bytes,
                 race->on_track(BULK_READ, store.group, TSC_EMU_READ, at));
  count(SHARED_LOAD, bytes);
  for_each_row(map, store.coordinate, [&](u32, const u8* to, u32 low, u32 high) {
    if (high <= low) return;
    check_global(to + low, high - low, true, 1, at);
    count(GLOBAL_STORE, high - low);
    if (race) trace_global(to + low, high - low, race->on_track(BULK_WRITE, store.group, TSC_EMU_WRITE, at));
  });
  if (engine.lands_later()) {
    engine.stores.push_back(std::move(store));
  } else {
    read(store);
    write(store);
  }
}

// Bytes in a row as a tensor of one box.
tsc_emu_tensor_map row_of_bytes(const void* address, u32 bytes, u32 at) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0 || bytes % 16 != 0 || bytes == 0)
    fail(TSC_EMU_MISALIGNED, at, "a bulk copy of %u bytes at %p: both must be multiples of 16", bytes, address);
  tsc_emu_tensor_map map{};
  map.rank = 1;
  map.address = reinterpret_cast<uintptr_t>(address);
  map.dims[0] = map.box[0] = bytes;
  return map;
}

constexpr i32 ORIGIN[1] = {0};

}  // namespace

bool Hopper::land_load() {
  if (loads.empty()) return false;
  const size_t index = cluster->launch->stress() ? random_bits() % loads.size() : 0;
  const Load load = std::move(loads[index]);
  loads.erase(loads.begin() + static_cast<std::ptrdiff_t>(index));
  land(load);
  return true;
}

bool Hopper::land_store() {
  if (stores.empty()) return false;
  const size_t index = cluster->launch->stress() ? random_bits() % stores.size() : 0;
  Store& store = stores[index];
  if (!store.has_read) {
    if (store.fiber->done)
      fail_for(*store.fiber, TSC_EMU_PROTOCOL, store.at,
               "the thread has left the kernel, but its bulk store still reads shared memory");
    read(store);
  } else {
    write(store);
    stores.erase(stores.begin() + static_cast<std::ptrdiff_t>(index));
  }
  wake_bulk(*this);
  return true;
}

void tma_prefetch(const tsc_emu_tensor_map* map, u32 at) {
  tick();
  check_map(*map, map->rank, at);
}

void tma_load(u32 target, const tsc_emu_tensor_map* map, u32 barrier, const i32* coordinate, int rank, u32 blocks, u32 at) {
  tick();
  check_map(*map, rank, at);
  check_start(*map, coordinate, false, at);
  issue_load(*map, coordinate, target, box_alignment(*map), barrier, blocks, at);
}

void tma_store(const tsc_emu_tensor_map* map, u32 source, const i32* coordinate, int rank, u32 at) {
  tick();
  check_map(*map, rank, at);
  check_start(*map, coordinate, true, at);
  issue_store(*map, coordinate, source, box_alignment(*map), at);
}

void bulk_load(u32 target, const void* source, u32 bytes, u32 barrier, u32 at) {
  tick();
  issue_load(row_of_bytes(source, bytes, at), ORIGIN, target, 16, barrier, 0, at);
}

void bulk_store(void* target, u32 source, u32 bytes, u32 at) {
  tick();
  issue_store(row_of_bytes(target, bytes, at), ORIGIN, source, 16, at);
}

void bulk_commit(u32) {
  tick();
  hopper().bulk_committed[self->index]++;
}

void bulk_wait(u32 pending, bool read, u32 at) {
  tick();
  Hopper& engine = hopper();
  const u32 committed = engine.bulk_committed[self->index];
  if (committed <= pending) return;
  const BulkWaiter waiter{self, committed - pending, read};
  if (!is_over(engine, waiter)) {
    engine.bulk_waiting.push_back(waiter);
    wait(read ? "bulk_wait_read" : "bulk_wait", at);
  }
  u32* const own = self->clock.own;
  own[BULK_READ] = std::max(own[BULK_READ], waiter.group);
  if (!read) own[BULK_WRITE] = std::max(own[BULK_WRITE], waiter.group);
}

}  // namespace tsc::emu
