// Barriers, warp synchronisation, fences, shuffles.
#include "state.hpp"

namespace tsc::emu {

namespace {

// One thread arrives at barrier `id`. True where it completes the barrier, which then is reset and its waiters run again.
bool arrive(u32 id, u32 threads, bool waits, const char* what, u32 at) {
  Block& block = *self->block;
  Warp& warp = *self->warp;
  if (id > 15) fail(TSC_EMU_PROTOCOL, at, "barrier %u does not exist: there are 16", id);
  if (threads == 0) {
    threads = cluster->launch->threads;
    if (block.alive != threads)
      fail(TSC_EMU_DIVERGED, at, "%s after %u threads of the block have left the kernel", what, threads - block.alive);
  } else if (threads % 32 != 0 || threads > cluster->launch->threads) {
    fail(TSC_EMU_PROTOCOL, at, "a barrier among %u threads: the number must be a multiple of 32 up to the block's %u", threads,
         cluster->launch->threads);
  }
  Barrier& barrier = block.barriers[id];
  if (barrier.arrived == 0)
    barrier.threads = threads;
  else if (barrier.threads != threads)
    fail(TSC_EMU_PROTOCOL, at, "barrier %u is met with %u threads here and with %u elsewhere", id, threads, barrier.threads);
  if (warp.barrier_count[id] == 0)
    warp.barrier_at[id] = at;
  else if (warp.barrier_at[id] != at)
    fail(TSC_EMU_DIVERGED, at, "lanes of one warp meet barrier %u at different lines, here and at line %u", id,
         warp.barrier_at[id]);
  warp.barrier_count[id] = (warp.barrier_count[id] + 1) % 32;
  barrier.clock.add(*self);
  if (waits) barrier.waiting.push_back(self);
  if (++barrier.arrived < threads) return false;
  barrier.arrived = 0;
  for (Fiber* fiber : barrier.waiting) {
    barrier.clock.meet(*fiber);
    wake(*fiber);
  }
  barrier.waiting.clear();
  barrier.clock.clear();
  return true;
}

}  // namespace

void barrier_sync(u32 id, u32 threads, u32 at) {
  const char* const what = id == 0 ? "block_sync" : "named_barrier_sync";
  if (self->warp->arrived != 0)
    fail(TSC_EMU_DIVERGED, at, "at %s while %u lanes of its warp stand at %s, line %u", what, self->warp->arrived,
         self->warp->collective, self->warp->collective_at);
  if (!arrive(id, threads, true, what, at)) wait(what, at);
}

void barrier_arrive(u32 id, u32 threads, u32 at) {
  tick();
  arrive(id, threads, false, "named_barrier_arrive", at);
}

void warp_sync(u32 mask, u32 at) {
  Warp& warp = *self->warp;
  if (!(mask >> self->lane & 1))
    fail(TSC_EMU_PROTOCOL, at, "warp_sync by lane %u, which its mask %08x leaves out", self->lane, mask);
  if (mask & ~warp.alive) fail(TSC_EMU_DIVERGED, at, "warp_sync waits for lanes that have left the kernel");
  PartialSync* met = nullptr;
  for (PartialSync& sync : warp.partial)
    if (sync.mask == mask)
      met = &sync;
    else if (sync.mask & mask)
      fail(TSC_EMU_DIVERGED, at, "warp_sync with mask %08x while other lanes of it wait with mask %08x", mask, sync.mask);
  if (met == nullptr) {
    warp.partial.push_back({mask, 0});
    met = &warp.partial.back();
  }
  met->arrived |= 1u << self->lane;
  if (met->arrived != mask) {
    wait("warp_sync", at);
    return;
  }
  warp.partial.erase(warp.partial.begin() + (met - warp.partial.data()));
  std::vector<Fiber*> fibers;
  for (u32 lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) {
      fibers.push_back(&warp.lanes[lane]);
      if (lane != self->lane) wake(warp.lanes[lane]);
    }
  synchronise(fibers);
  tick();
}

void fence(u32) {
  tick();
  if (Race* race = cluster->launch->race) race->fence(*self);
}

namespace {
struct Exchange {
  char* all;
  const void* value;
};
}  // namespace

void warp_exchange(void* all, const void* value, u32 bytes, const char* what, u32 at) {
  Exchange exchange{static_cast<char*>(all), value};
  if (!collective(what, &exchange, at)) return;
  const Warp& warp = *self->warp;
  char* const mine = exchange.all;
  for (u32 lane = 0; lane < 32; lane++)
    memcpy(mine + size_t{lane} * bytes, static_cast<const Exchange*>(warp.slot[lane])->value, bytes);
  for (u32 lane = 0; lane < 32; lane++)
    if (char* const target = static_cast<const Exchange*>(warp.slot[lane])->all; target != mine)
      memcpy(target, mine, size_t{32} * bytes);
}

}  // namespace tsc::emu
