// Global and shared accesses, cp.async, atomics.
#include "state.hpp"

namespace tsc::emu {

namespace {

inline void copy_bytes(void* target, const void* source, u32 bytes) {
  switch (bytes) {
    case 16:
      memcpy(target, source, 16);
      return;
    case 8:
      memcpy(target, source, 8);
      return;
    case 4:
      memcpy(target, source, 4);
      return;
    case 2:
      memcpy(target, source, 2);
      return;
    default:
      memcpy(target, source, bytes);
  }
}

inline void count(Traffic traffic, u64 address, u32 bytes, u32 at) {
  if (cluster->launch->options.count) cluster->tally.lane(self->index / 32, self->lane, traffic, address, bytes, at);
}

void trace_shared(Block& owner, u32 address, u32 bytes, const Access& access) {
  cluster->launch->race->shared(owner, (address & 0xffffff) - shared_window_base, bytes, access);
}

// Of ranges that overlap, the first writable one keeps the shadow.
void trace_global(const void* address, u32 bytes, const Access& access) {
  const tsc_emu_options& options = cluster->launch->options;
  for (u32 i = 0; i < options.range_count; i++) {
    const tsc_emu_range& range = options.ranges[i];
    const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(range.base);
    if (range.writable && offset < range.bytes) return cluster->launch->race->global(i, offset, bytes, access, address);
  }
}

[[noreturn]] void report_outside(const void* address, u32 bytes, bool store, u32 at) {
  const tsc_emu_options& options = cluster->launch->options;
  const char* const what = store ? "store" : "load";
  const char* const first = static_cast<const char*>(address);
  long long best = -1;
  u32 nearest = 0;
  for (u32 i = 0; i < options.range_count; i++) {
    const char* const low = static_cast<const char*>(options.ranges[i].base);
    const char* const high = low + options.ranges[i].bytes;
    if (first >= low && first + bytes <= high)
      fail(TSC_EMU_OUT_OF_BOUNDS, at, "a store of %u bytes to the read-only range %u, at byte %lld", bytes, i,
           static_cast<long long>(first - low));
    const long long distance = first < low ? low - first : first + bytes - high;
    if (best < 0 || distance < best) {
      best = distance;
      nearest = i;
    }
  }
  const tsc_emu_range& range = options.ranges[nearest];
  fail(TSC_EMU_OUT_OF_BOUNDS, at, "a global %s of %u bytes at byte %lld of the nearest range, number %u, of %llu bytes", what,
       bytes, static_cast<long long>(first - static_cast<const char*>(range.base)), nearest,
       static_cast<unsigned long long>(range.bytes));
}

}  // namespace

u8* shared_at(u32 address, u32 bytes, u32 alignment, u32 at, Block** owner) {
  const u32 rank = address >> 24, offset = (address & 0xffffff) - shared_window_base;
  const u32 size = cluster->launch->shared_bytes;
  if (rank > cluster->blocks.size())
    fail(TSC_EMU_OUT_OF_BOUNDS, at, "shared address %08x names block %u of a cluster of %zu", address, rank - 1,
         cluster->blocks.size());
  if ((address & 0xffffff) < shared_window_base || offset > size || bytes > size - offset)
    fail(TSC_EMU_OUT_OF_BOUNDS, at, "a shared access of %u bytes at %lld, but the block has %u bytes", bytes,
         static_cast<long long>(address & 0xffffff) - shared_window_base, size);
  if (address % alignment != 0)
    fail(TSC_EMU_MISALIGNED, at, "a shared access at %u, which is no multiple of %u", offset, alignment);
  Block& block = rank == 0 ? *self->block : cluster->blocks[rank - 1];
  if (owner) *owner = &block;
  return block.shared + offset;
}

void check_global(const void* address, u32 bytes, bool store, u32 alignment, u32 at) {
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0)
    fail(TSC_EMU_MISALIGNED, at, "a global access at %p, which is no multiple of %u", address, alignment);
  const tsc_emu_options& options = cluster->launch->options;
  const auto inside = [&](const tsc_emu_range& range) {
    const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(range.base);
    return offset < range.bytes && bytes <= range.bytes - offset && (range.writable || !store);
  };
  if (options.range_count == 0 || inside(options.ranges[cluster->hint])) return;
  for (u32 i = 0; i < options.range_count; i++)
    if (inside(options.ranges[i])) {
      cluster->hint = i;
      return;
    }
  report_outside(address, bytes, store, at);
}

void global_load(void* value, const void* source, u32 bytes, u32 at) {
  tick();
  check_global(source, bytes, false, bytes, at);
  if (cluster->launch->race) trace_global(source, bytes, Race::own(TSC_EMU_READ, at));
  count(GLOBAL_LOAD, reinterpret_cast<uintptr_t>(source), bytes, at);
  copy_bytes(value, source, bytes);
}

void global_load_constant(void* value, const void* source, u32 bytes, u32 at) {
  tick();
  check_global(source, bytes, false, bytes, at);
  if (cluster->launch->race) {
    Access access = Race::own(TSC_EMU_READ, at);
    access.constant = true;
    trace_global(source, bytes, access);
  }
  count(GLOBAL_LOAD, reinterpret_cast<uintptr_t>(source), bytes, at);
  copy_bytes(value, source, bytes);
}

void global_store(void* target, const void* value, u32 bytes, u32 at) {
  tick();
  check_global(target, bytes, true, bytes, at);
  if (cluster->launch->race) trace_global(target, bytes, Race::own(TSC_EMU_WRITE, at));
  count(GLOBAL_STORE, reinterpret_cast<uintptr_t>(target), bytes, at);
  copy_bytes(target, value, bytes);
}

void shared_load(void* value, u32 source, u32 bytes, u32 at) {
  tick();
  Block* owner;
  const u8* const from = shared_at(source, bytes, bytes, at, &owner);
  if (cluster->launch->race) trace_shared(*owner, source, bytes, Race::own(TSC_EMU_READ, at));
  count(SHARED_LOAD, source & 0xffffff, bytes, at);
  copy_bytes(value, from, bytes);
}

void shared_store(u32 target, const void* value, u32 bytes, u32 at) {
  tick();
  Block* owner;
  u8* const to = shared_at(target, bytes, bytes, at, &owner);
  if (cluster->launch->race) trace_shared(*owner, target, bytes, Race::own(TSC_EMU_WRITE, at));
  count(SHARED_STORE, target & 0xffffff, bytes, at);
  copy_bytes(to, value, bytes);
}

void stand_by(bool shared, bool store, u32 at) {
  count(shared ? (store ? SHARED_STORE : SHARED_LOAD) : (store ? GLOBAL_STORE : GLOBAL_LOAD), 0, 0, at);
}

void land(const PendingCopy& copy) {
  if (copy.predicate)
    memcpy(copy.target, copy.source, copy.bytes);
  else
    memset(copy.target, 0, copy.bytes);
}

void cp_async(u32 target, const void* source, u32 bytes, bool predicate, u32 at) {
  tick();
  Block* owner;
  const Launch& launch = *cluster->launch;
  u8* const to = shared_at(target, bytes, bytes, at, &owner);
  if (predicate) check_global(source, bytes, false, bytes, at);
  if (launch.race) {
    const u32 group = self->committed + 1;
    if (predicate) trace_global(source, bytes, launch.race->on_track(CP_ASYNC, group, TSC_EMU_READ, at));
    trace_shared(*owner, target, bytes, launch.race->on_track(CP_ASYNC, group, TSC_EMU_WRITE, at));
  }
  count(GLOBAL_LOAD, reinterpret_cast<uintptr_t>(source), predicate ? bytes : 0, at);
  count(SHARED_STORE, target & 0xffffff, bytes, at);
  const PendingCopy copy{to, source, bytes, predicate};
  if (launch.lazy() || (launch.stress() && (random_bits() & 1))) {
    memset(to, 0xff, bytes);
    self->open.push_back(copy);
  } else {
    land(copy);
  }
}

void cp_async_commit(u32) {
  self->committed++;
  if (cluster->launch->lazy() || cluster->launch->stress()) {
    self->groups.push_back(std::move(self->open));
    self->open.clear();
  }
}

void cp_async_wait(int pending, u32 at) {
  tick();
  const u32 keep = pending < 0 ? 0 : static_cast<u32>(pending);
  while (self->groups.size() > keep) {
    for (const PendingCopy& copy : self->groups.front()) land(copy);
    self->groups.pop_front();
  }
  if (pending < 0) {
    for (const PendingCopy& copy : self->open) land(copy);
    self->open.clear();
    cp_async_commit(at);  // the open group is over: later copies belong to the next
    self->groups.clear();
  }
  u32& done = self->clock.own[CP_ASYNC];
  if (self->committed > keep && self->committed - keep > done) done = self->committed - keep;
}

namespace {

template <class T>
T combine(T old, T value, T expected, AtomicOperation operation) {
  switch (operation) {
    case ATOMIC_ADD:
      return old + value;
    case ATOMIC_MAX:
      return old > value ? old : value;
    case ATOMIC_EXCHANGE:
      return value;
    default:
      return old == expected ? value : old;
  }
}

// Atomic among host threads too: clusters of one launch share global memory.
template <class T, class Word>
void update(void* old_out, void* target, const void* value, const void* expected, AtomicOperation operation) {
  T operand, wanted{};
  memcpy(&operand, value, sizeof(T));
  if (expected) memcpy(&wanted, expected, sizeof(T));
  Word* const place = static_cast<Word*>(target);
  Word before = __atomic_load_n(place, __ATOMIC_SEQ_CST), after;
  T old;
  do {
    memcpy(&old, &before, sizeof(T));
    const T result = combine(old, operand, wanted, operation);
    memcpy(&after, &result, sizeof(T));
  } while (!__atomic_compare_exchange_n(place, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
  memcpy(old_out, &old, sizeof(T));
}

void update_typed(void* old, void* target, const void* value, const void* expected, AtomicOperation operation,
                  AtomicType type) {
  switch (type) {
    case ATOMIC_F32:
      return update<float, u32>(old, target, value, expected, operation);
    case ATOMIC_I32:
      if (operation == ATOMIC_ADD) return update<u32, u32>(old, target, value, expected, operation);
      return update<i32, u32>(old, target, value, expected, operation);
    case ATOMIC_U32:
      return update<u32, u32>(old, target, value, expected, operation);
    case ATOMIC_U64:
      return update<u64, u64>(old, target, value, expected, operation);
  }
}

}  // namespace

void atomic_global(void* old, void* target, const void* value, const void* expected, AtomicOperation operation, AtomicType type,
                   u32 at) {
  tick();
  const u32 bytes = type == ATOMIC_U64 ? 8 : 4;
  check_global(target, bytes, true, bytes, at);
  if (Race* race = cluster->launch->race) {
    trace_global(target, bytes, Race::own(TSC_EMU_ATOMIC, at));
    race->atomic(*self, target, false);
  }
  count(GLOBAL_STORE, reinterpret_cast<uintptr_t>(target), bytes, at);
  update_typed(old, target, value, expected, operation, type);
  if (cluster->launch->stress() && (random_bits() & 3) == 0) give_way();
}

void atomic_shared(void* old, u32 target, const void* value, AtomicOperation operation, AtomicType type, u32 at) {
  tick();
  const u32 bytes = type == ATOMIC_U64 ? 8 : 4;
  Block* owner;
  u8* const place = shared_at(target, bytes, bytes, at, &owner);
  if (Race* race = cluster->launch->race) {
    trace_shared(*owner, target, bytes, Race::own(TSC_EMU_ATOMIC, at));
    race->atomic(*self, place, true);
  }
  count(SHARED_STORE, target & 0xffffff, bytes, at);
  update_typed(old, place, value, nullptr, operation, type);
}

}  // namespace tsc::emu
