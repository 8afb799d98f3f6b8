// mbarriers, clusters, and the engine that lands what sm_90a does asynchronously.
#include "hopper_state.hpp"

namespace tsc::emu {

namespace {

constexpr u64 MBARRIER_SEAL = 0x6d6261727269e200ull;
constexpr int64_t MOST_BYTES = (1 << 20) - 1;
enum : u8 { ARRIVED = 1, COMPLETE = 2 };  // of a thread at the cluster's barrier: the phase goes on; it is over

u64 seal(const Mbarrier& barrier) {
  return MBARRIER_SEAL ^ (static_cast<u64>(barrier.rank) << 40) ^ (static_cast<u64>(barrier.offset) << 12);
}

// What a thread that waits for the phase under way still waits for.
void describe_missing(Mbarrier& barrier) {
  char text[160];
  snprintf(text, sizeof text,
           "mbarrier_wait on the barrier at byte %u%s%s, phase %llu (%u of %u arrivals and %lld bytes are missing)",
           barrier.offset, cluster->blocks.size() > 1 ? " of block " : "",
           cluster->blocks.size() > 1 ? std::to_string(barrier.rank).c_str() : "", barrier.phase, barrier.pending,
           barrier.arrivals, static_cast<long long>(barrier.bytes));
  barrier.text = text;
  for (Fiber* fiber : barrier.waiting) fiber->waits_for = barrier.text.c_str();
}

void trace(const Mbarrier& barrier, u32 kind, u32 at) {
  Race* const race = cluster->launch->race;
  if (!race) return;
  if (kind == TSC_EMU_ATOMIC && !race->knows(*self, barrier.made))
    fail(TSC_EMU_PROTOCOL, at, "nothing orders this after the initialisation (line %u) of the mbarrier at byte %u",
         barrier.made.at, barrier.offset);
  race->shared(cluster->blocks[barrier.rank], barrier.offset, 8, Race::own(kind, at));
}

// The running thread's own mark, now.
Mark own_mark(u32 kind, u32 at) {
  return {cluster->launch->race->cluster_id() + 1, self->index, self->clock.own[PROGRAM], at & 0xfffffff, kind};
}

// An arrival in a phase must follow the completion of the one before: else, in another order, it would have counted there.
void check_order(const Mbarrier& barrier, u32 at) {
  for (const Mark& mark : barrier.before)
    if (!cluster->launch->race->knows(*self, mark))
      fail(TSC_EMU_PROTOCOL, at,
           "an arrival on the mbarrier at byte %u that nothing orders after the end of phase %llu (an arrival at line %u): one "
           "too many "
           "there, or a missing wait",
           barrier.offset, barrier.phase - 1, mark.at);
}

}  // namespace

Hopper::Hopper() : later_(cluster->launch->lazy() || cluster->launch->stress()) {
  const u32 threads = cluster->launch->threads, per_block = threads / 128;
  bulk_committed.assign(cluster->fibers.size(), 0);
  cluster_arrived.assign(cluster->fibers.size(), 0);
  groups.resize(size_t{per_block} * cluster->blocks.size());
  for (u32 i = 0; i < groups.size(); i++) groups[i].lanes = &cluster->fibers[i / per_block * threads + i % per_block * 128];
}

Hopper& hopper() {
  if (cluster->engines.empty()) cluster->engines.push_back(std::make_unique<Hopper>());
  return static_cast<Hopper&>(*cluster->engines.front());
}

bool Hopper::land_one() {
  const u32 first = cluster->launch->stress() ? random_bits() % 3 : 0;
  for (u32 i = 0; i < 3; i++) switch ((first + i) % 3) {
      case 0:
        if (land_load()) return true;
        break;
      case 1:
        if (land_product()) return true;
        break;
      default:
        if (land_store()) return true;
    }
  if (complete_cluster_barrier()) return true;
  for (auto& [place, barrier] : barriers)
    if (!barrier.waiting.empty()) describe_missing(barrier);
  return false;
}

void fail_for(const Fiber& fiber, int32_t status, u32 at, const char* format, ...) {
  char text[768];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Failure failure{};
  failure.status = status;
  failure.message = describe(fiber) + ", line " + std::to_string(at) + ": " + text;
  const Index3 &t = fiber.place, &b = fiber.block->index;
  failure.access[0] = {at, 0, 0, {b.x, b.y, b.z}, {t.x, t.y, t.z}};
  fail_with(std::move(failure));
}

Mbarrier& find_mbarrier(u32 address, u32 at) {
  Block* owner;
  const u8* const place = shared_at(address, 8, 8, at, &owner);
  if (owner->alive == 0) fail(TSC_EMU_PROTOCOL, at, "the mbarrier's block %u has left the kernel", owner->rank);
  const u32 offset = (address & 0xffffff) - shared_window_base;
  auto& barriers = hopper().barriers;
  const auto found = barriers.find(owner->rank << 24 | offset);
  if (found == barriers.end()) fail(TSC_EMU_PROTOCOL, at, "there is no mbarrier at byte %u: nobody has initialised it", offset);
  const u64 expected = seal(found->second);
  if (memcmp(place, &expected, 8) != 0) fail(TSC_EMU_PROTOCOL, at, "the mbarrier at byte %u has been overwritten", offset);
  return found->second;
}

void settle(Mbarrier& barrier, const Fiber& by, u32 at) {
  if (barrier.bytes > MOST_BYTES || barrier.bytes < -MOST_BYTES)
    fail_for(by, TSC_EMU_PROTOCOL, at, "the mbarrier at byte %u would count %lld bytes, but can count %lld", barrier.offset,
             static_cast<long long>(barrier.bytes), static_cast<long long>(MOST_BYTES));
  if (barrier.pending != 0 || barrier.bytes > 0) return;
  if (barrier.bytes < 0)
    fail_for(by, TSC_EMU_PROTOCOL, at, "%lld bytes more than expected have landed in phase %llu of the mbarrier at byte %u",
             static_cast<long long>(-barrier.bytes), barrier.phase, barrier.offset);
  barrier.phase++;
  barrier.pending = barrier.arrivals;
  barrier.done = std::move(barrier.next);
  barrier.next.clear();
  barrier.before.swap(barrier.arrived);
  barrier.arrived.clear();
  for (Fiber* fiber : barrier.waiting) wake(*fiber);
  barrier.waiting.clear();
}

void mbarrier_init(u32 address, u32 arrivals, u32 at) {
  tick();
  Block* owner;
  u8* const place = shared_at(address, 8, 8, at, &owner);
  if (owner != self->block) fail(TSC_EMU_PROTOCOL, at, "an mbarrier can be initialised by its own block only");
  if (arrivals == 0 || arrivals > MOST_BYTES) fail(TSC_EMU_PROTOCOL, at, "an mbarrier of %u arrivals", arrivals);
  const u32 offset = (address & 0xffffff) - shared_window_base;
  auto [found, is_new] = hopper().barriers.try_emplace(owner->rank << 24 | offset);
  Mbarrier& barrier = found->second;
  const u64 sealed = seal(barrier);
  if (!is_new && memcmp(place, &sealed, 8) == 0)
    fail(TSC_EMU_PROTOCOL, at, "the mbarrier at byte %u is initialised again without mbarrier_invalidate", offset);
  barrier = Mbarrier{};
  barrier.rank = owner->rank;
  barrier.offset = offset;
  barrier.arrivals = barrier.pending = arrivals;
  if (Race* race = cluster->launch->race) {
    barrier.actor = race->new_actor();
    barrier.made = own_mark(TSC_EMU_WRITE, at);
  }
  trace(barrier, TSC_EMU_WRITE, at);
  const u64 seal_now = seal(barrier);
  memcpy(place, &seal_now, 8);
}

void mbarrier_invalidate(u32 address, u32 at) {
  tick();
  const Mbarrier& barrier = find_mbarrier(address, at);
  trace(barrier, TSC_EMU_WRITE, at);
  if (!barrier.waiting.empty())
    fail(TSC_EMU_PROTOCOL, at, "%zu threads wait for the mbarrier that is invalidated", barrier.waiting.size());
  memset(shared_at(address, 8, 8, at, nullptr), 0xff, 8);
  hopper().barriers.erase(barrier.rank << 24 | barrier.offset);
}

void mbarrier_arrive(u32 address, u32 bytes, u32 arrivals, u32 at) {
  tick();
  Mbarrier& barrier = find_mbarrier(address, at);
  trace(barrier, TSC_EMU_ATOMIC, at);
  barrier.bytes += bytes;
  if (arrivals != 0) {
    if (barrier.pending == 0)
      fail(TSC_EMU_PROTOCOL, at,
           "an arrival too many: all %u of phase %llu of the mbarrier at byte %u have come, and only %lld bytes are missing",
           barrier.arrivals, barrier.phase, barrier.offset, static_cast<long long>(barrier.bytes));
    if (cluster->launch->race) {
      check_order(barrier, at);
      barrier.arrived.push_back(own_mark(TSC_EMU_ATOMIC, at));
      barrier.next.add(*self);
    }
    barrier.pending--;
  }
  settle(barrier, *self, at);
}

bool mbarrier_test(u32 address, u32 parity, u32 at) {
  tick();
  Mbarrier& barrier = find_mbarrier(address, at);
  trace(barrier, TSC_EMU_ATOMIC, at);
  if (parity > 1) fail(TSC_EMU_PROTOCOL, at, "the parity of a phase is 0 or 1, not %u", parity);
  if ((barrier.phase & 1) == parity) {
    give_way();
    return false;
  }
  barrier.done.meet(*self);
  return true;
}

void mbarrier_wait(u32 address, u32 parity, u32 at) {
  tick();
  Mbarrier& barrier = find_mbarrier(address, at);
  trace(barrier, TSC_EMU_ATOMIC, at);
  if (parity > 1) fail(TSC_EMU_PROTOCOL, at, "the parity of a phase is 0 or 1, not %u", parity);
  if (const u64 phase = barrier.phase; (phase & 1) == parity) {
    barrier.waiting.push_back(self);
    wait("mbarrier_wait", at);
    if (barrier.phase != phase + 1)
      fail(TSC_EMU_PROTOCOL, at,
           "the mbarrier at byte %u went through phases %llu and %llu while this thread waited for the first", barrier.offset,
           phase, phase + 1);
  }
  barrier.done.meet(*self);
}

void fence_async_shared(u32) {
  tick();
  if (Race* race = cluster->launch->race) race->async_fence(*self);
}

Index3 cluster_index() {
  const Index3 &block = self->block->index, &size = cluster->launch->cluster;
  return {block.x / size.x, block.y / size.y, block.z / size.z};
}

Index3 cluster_grid() {
  const Index3 &grid = cluster->launch->grid, &size = cluster->launch->cluster;
  return {grid.x / size.x, grid.y / size.y, grid.z / size.z};
}

Index3 block_in_cluster() {
  const Index3 &block = self->block->index, &size = cluster->launch->cluster;
  return {block.x % size.x, block.y % size.y, block.z % size.z};
}

// The barrier is complete when every thread that is left has arrived.
bool Hopper::complete_cluster_barrier() {
  if (cluster_count == 0 || cluster_count < cluster->alive) return false;
  for (const Fiber& fiber : cluster->fibers)
    if (!fiber.done && cluster_arrived[fiber.index] != ARRIVED) return false;
  cluster_count = 0;
  cluster_done = std::move(cluster_next);
  cluster_next.clear();
  for (u8& arrived : cluster_arrived)
    if (arrived == ARRIVED) arrived = COMPLETE;
  for (Fiber* fiber : cluster_waiting) wake(*fiber);
  cluster_waiting.clear();
  return true;
}

void cluster_arrive(u32 at) {
  tick();
  Hopper& engine = hopper();
  u8& arrived = engine.cluster_arrived[self->index];
  if (arrived != 0) fail(TSC_EMU_PROTOCOL, at, "cluster_arrive twice without cluster_wait");
  arrived = ARRIVED;
  engine.cluster_count++;
  engine.cluster_next.add(*self);
  engine.complete_cluster_barrier();
}

void cluster_wait(u32 at) {
  tick();
  Hopper& engine = hopper();
  u8& arrived = engine.cluster_arrived[self->index];
  if (arrived == 0) fail(TSC_EMU_PROTOCOL, at, "cluster_wait without cluster_arrive");
  if (arrived == ARRIVED) {
    engine.cluster_waiting.push_back(self);
    wait("cluster_wait", at);
  }
  arrived = 0;
  engine.cluster_done.meet(*self);
}

u32 map_shared(u32 address, u32 rank, u32 at) {
  if (rank >= cluster->blocks.size())
    fail(TSC_EMU_PROTOCOL, at, "map_shared to block %u of a cluster of %zu", rank, cluster->blocks.size());
  return (rank + 1) << 24 | (address & 0xffffff);
}

void check_mapped(u32 address, u32 at) {
  const u32 rank = address >> 24;
  if (rank != 0 && rank <= cluster->blocks.size() && cluster->blocks[rank - 1].alive == 0)
    fail(TSC_EMU_PROTOCOL, at, "block %u, whose shared memory this touches, has left the kernel", rank - 1);
}

}  // namespace tsc::emu
