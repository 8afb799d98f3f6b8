// Fibers: switching, waiting, warp collectives, and the reports of those who can never go on.
#include <sys/mman.h>

#include "state.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define TSC_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TSC_EMU_ASAN 1
#endif
#endif
#ifdef TSC_EMU_ASAN
extern "C" void __asan_unpoison_memory_region(void const volatile*, size_t);
extern "C" void __sanitizer_start_switch_fiber(void** fake, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* fake, const void** bottom, size_t* size);
#endif

// Save the callee-saved registers and the stack pointer in *save, and go on where `load` was saved (System V x86-64).
extern "C" void tsc_emu_switch(void** save, void* load) __attribute__((visibility("hidden")));
asm(R"(
.text
.p2align 4
.hidden tsc_emu_switch
.globl tsc_emu_switch
.type tsc_emu_switch,@function
tsc_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tsc_emu_switch,.-tsc_emu_switch
)");

namespace tsc::emu {

// Of no static model: a process has room for some hundred modules with such variables, and may load more.
thread_local Cluster* cluster = nullptr;
thread_local Fiber* self = nullptr;

namespace {

#ifdef TSC_EMU_ASAN
constexpr size_t STACK_BYTES = 512 << 10;
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif
constexpr size_t GUARD_BYTES = 4096;
constexpr u32 TICKS = 1 << 14;

char* stack_of(const Fiber& fiber) { return cluster->stacks + STACK_BYTES * fiber.index; }

// Leave for `target`; returns when somebody switches back here. `dying` says that nobody will.
void switch_to(Fiber& target, bool dying) {
  Fiber* const from = self;
  self = &target;
  cluster->switches++;
#ifdef TSC_EMU_ASAN
  __sanitizer_start_switch_fiber(dying ? nullptr : &from->fake_stack, stack_of(target) + GUARD_BYTES,
                                 STACK_BYTES - GUARD_BYTES);
#else
  (void)dying;
#endif
  tsc_emu_switch(&from->stack_pointer, target.stack_pointer);
#ifdef TSC_EMU_ASAN
  __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

[[noreturn]] void leave_to_main() {
  Fiber* const from = self;
  self = nullptr;
#ifdef TSC_EMU_ASAN
  __sanitizer_start_switch_fiber(nullptr, cluster->main_stack_bottom, cluster->main_stack_bytes);
#endif
  tsc_emu_switch(&from->stack_pointer, cluster->main_stack_pointer);
  abort();
}

// The next fiber to run, from warp `from` on and in a warp from lane `lane` on; null where none can.
Fiber* next_runnable(u32 from, u32 lane) {
  const u32 count = static_cast<u32>(cluster->warps.size());
  if (cluster->launch->stress()) {
    if ((random_bits() & 3) == 0) from = random_bits() % count;
    lane = random_bits() & 31;
  }
  for (u32 k = 0; k < count; k++, from = from + 1 == count ? 0 : from + 1, lane = cluster->launch->stress() ? lane : 0) {
    const u32 mask = cluster->warps[from].runnable;
    if (mask == 0) continue;
    const u32 turned = lane == 0 ? mask : (mask >> lane | mask << (32 - lane));
    cluster->current = from;
    return &cluster->warps[from].lanes[(static_cast<u32>(__builtin_ctz(turned)) + lane) & 31];
  }
  return nullptr;
}

[[noreturn]] void report_deadlock() {
  std::map<std::pair<std::string, u32>, std::vector<const Fiber*>> waiting;
  const Fiber* first = nullptr;
  for (const Fiber& fiber : cluster->fibers)
    if (!fiber.done) {
      waiting[{fiber.waits_for ? fiber.waits_for : "nothing", fiber.waits_at}].push_back(&fiber);
      if (!first) first = &fiber;
    }
  Failure failure{};
  failure.status = TSC_EMU_DEADLOCK;
  failure.message = "deadlock:";
  for (const auto& [where, who] : waiting) {
    failure.message += who.front() == first ? " " : "; ";
    failure.message += std::to_string(who.size()) + (who.size() == 1 ? " thread waits at " : " threads wait at ") +
                       where.first + " (line " + std::to_string(where.second) + "), the first is " + describe(*who.front());
  }
  const u32 left = static_cast<u32>(cluster->fibers.size()) - cluster->alive;
  if (left != 0) failure.message += "; " + std::to_string(left) + " threads have left the kernel";
  if (first) {
    failure.access[0] = {first->waits_at,
                         0,
                         0,
                         {first->block->index.x, first->block->index.y, first->block->index.z},
                         {first->place.x, first->place.y, first->place.z}};
  }
  fail_with(std::move(failure));
}

// Run somebody else: `self` waits or has left.
void run_others(bool dying) {
  if (cluster->launch->stress() && !cluster->engines.empty() && (random_bits() & 7) == 0)
    cluster->engines[random_bits() % cluster->engines.size()]->land_one();
  for (;;) {
    tick();
    Fiber* next = next_runnable(cluster->current, 0);
    if (next == self && !dying) return;
    if (next) {
      switch_to(*next, dying);
      return;
    }
    bool landed = false;
    for (auto& engine : cluster->engines) landed = engine->land_one() || landed;
    if (landed) continue;
    if (cluster->alive == 0) leave_to_main();
    report_deadlock();
  }
}

void check_nobody_waits_for(const Fiber& leaver) {
  const Warp& warp = *leaver.warp;
  if (warp.arrived != 0)
    fail(TSC_EMU_DIVERGED, warp.collective_at, "a thread leaves the kernel while %u lanes of its warp wait at %s (line %u)",
         warp.arrived, warp.collective, warp.collective_at);
  const Barrier& barrier = leaver.block->barriers[0];
  if (barrier.arrived != 0)
    fail(TSC_EMU_DIVERGED, barrier.waiting.empty() ? 0 : barrier.waiting[0]->waits_at,
         "a thread leaves the kernel while %u threads of its block wait at block_sync", barrier.arrived);
}

void fiber_main() {
#ifdef TSC_EMU_ASAN
  if (cluster->main_stack_bottom == nullptr)
    __sanitizer_finish_switch_fiber(nullptr, &cluster->main_stack_bottom, &cluster->main_stack_bytes);
  else
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
  const Kernel& kernel = *cluster->launch->kernel;
  kernel.body(kernel, cluster->launch->arguments);
  for (const PendingCopy& copy : self->open) land(copy);
  for (const auto& group : self->groups)
    for (const PendingCopy& copy : group) land(copy);
  self->done = true;
  self->warp->alive &= ~(1u << self->lane);
  self->warp->runnable &= ~(1u << self->lane);
  self->block->alive--;
  cluster->alive--;
  check_nobody_waits_for(*self);
  run_others(true);
  abort();
}

void prepare_stack(Fiber& fiber) {
  const uintptr_t top = reinterpret_cast<uintptr_t>(stack_of(fiber) + STACK_BYTES);
  void** slot = reinterpret_cast<void**>(top - 64);
  memset(slot, 0, 64);
  slot[6] = reinterpret_cast<void*>(fiber_main);
  fiber.stack_pointer = slot;
}

void reserve(Cluster& state, u32 threads, u32 blocks) {
  if (state.stacks == nullptr) {
    state.stacks_bytes = STACK_BYTES * threads;
    state.stacks = static_cast<char*>(
        mmap(nullptr, state.stacks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (state.stacks == MAP_FAILED) abort();
    for (u32 i = 0; i < threads; i++) mprotect(state.stacks + STACK_BYTES * i, GUARD_BYTES, PROT_NONE);
  }
  const size_t stride = (state.launch->shared_bytes + 1023) / 1024 * 1024;
  if (state.shared == nullptr && stride != 0) state.shared = static_cast<u8*>(aligned_alloc(1024, stride * blocks));
}

}  // namespace

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{1000000000} * time.tv_sec + time.tv_nsec;
}

void run_cluster(Cluster& state, u32 id) {
  Launch& launch = *state.launch;
  const u32 blocks = launch.cluster.x * launch.cluster.y * launch.cluster.z, threads = blocks * launch.threads;
  cluster = &state;
  reserve(state, threads, blocks);
  const size_t stride = (launch.shared_bytes + 1023) / 1024 * 1024;
  if (stride != 0) memset(state.shared, 0xff, stride * blocks);
#ifdef TSC_EMU_ASAN
  for (u32 i = 0; i < threads; i++)
    __asan_unpoison_memory_region(state.stacks + STACK_BYTES * i + GUARD_BYTES, STACK_BYTES - GUARD_BYTES);
#endif
  state.id = id;
  state.alive = threads;
  state.current = 0;
  state.ticks = TICKS;
  state.engines.clear();
  state.random_state = (launch.options.seed + 1) * 0x9e3779b97f4a7c15ull ^ (id + 1) * 0xd1b54a32d192ed03ull;
  state.blocks.assign(blocks, Block{});
  state.warps.assign(threads / 32, Warp{});
  state.fibers.resize(threads);
  if (launch.race) launch.race->begin_cluster(id);
  const u32 across = launch.grid.x / launch.cluster.x, down = launch.grid.y / launch.cluster.y;
  const Index3 corner{id % across * launch.cluster.x, id / across % down * launch.cluster.y,
                      id / across / down * launch.cluster.z};
  for (u32 b = 0; b < blocks; b++) {
    Block& block = state.blocks[b];
    block.index = {corner.x + b % launch.cluster.x, corner.y + b / launch.cluster.x % launch.cluster.y,
                   corner.z + b / launch.cluster.x / launch.cluster.y};
    block.rank = b;
    block.shared = state.shared + stride * b;
    block.fibers = &state.fibers[b * launch.threads];
    block.alive = launch.threads;
  }
  for (u32 i = 0; i < threads; i++) {
    Fiber& fiber = state.fibers[i];
    const u32 thread = i % launch.threads;
    Warp& warp = state.warps[i / 32];
    fiber.index = i;
    fiber.thread = thread;
    fiber.lane = i % 32;
    fiber.place = {thread % launch.block.x, thread / launch.block.x % launch.block.y, thread / launch.block.x / launch.block.y};
    fiber.block = &state.blocks[i / launch.threads];
    fiber.warp = &warp;
    fiber.done = false;
    fiber.waits_for = nullptr;
    fiber.groups.clear();
    fiber.open.clear();
    fiber.committed = 0;
    fiber.fake_stack = nullptr;
    prepare_stack(fiber);
    if (launch.race) launch.race->begin_thread(fiber);
    warp.block = fiber.block;
    warp.lanes = &state.fibers[i / 32 * 32];
    warp.runnable = warp.alive = ~0u;
  }
  self = next_runnable(0, 0);
#ifdef TSC_EMU_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack_of(*self) + GUARD_BYTES, STACK_BYTES - GUARD_BYTES);
#endif
  tsc_emu_switch(&state.main_stack_pointer, self->stack_pointer);
#ifdef TSC_EMU_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
  state.tally.flush();
  cluster = nullptr;
  self = nullptr;
}

std::string describe(const Fiber& fiber) {
  char text[128];
  const Index3 &t = fiber.place, &b = fiber.block->index;
  snprintf(text, sizeof text, "thread (%u,%u,%u) of block (%u,%u,%u)", t.x, t.y, t.z, b.x, b.y, b.z);
  return text;
}

void fail(int32_t status, u32 at, const char* format, ...) {
  char text[768];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  Failure failure{};
  failure.status = status;
  failure.message = text;
  if (self) {
    failure.message = describe(*self) + ", line " + std::to_string(at) + ": " + text;
    const Index3 &t = self->place, &b = self->block->index;
    failure.access[0] = {at, 0, 0, {b.x, b.y, b.z}, {t.x, t.y, t.z}};
  }
  fail_with(std::move(failure));
}

void fail_with(Failure failure) {
  cluster->failure = std::make_unique<Failure>(std::move(failure));
  leave_to_main();
}

void wait(const char* what, u32 at) {
  self->waits_for = what;
  self->waits_at = at;
  self->warp->runnable &= ~(1u << self->lane);
  run_others(false);
}

void wake(Fiber& fiber) {
  fiber.waits_for = nullptr;
  fiber.warp->runnable |= 1u << fiber.lane;
}

void give_way() {
  if (self->lane == 31 || (self->warp->runnable >> (self->lane + 1)) == 0) {
    const u32 next = cluster->current + 1;
    cluster->current = next == cluster->warps.size() ? 0 : next;
    if (Fiber* fiber = next_runnable(cluster->current, 0); fiber != self) switch_to(*fiber, false);
  } else if (Fiber* fiber = next_runnable(cluster->current, self->lane + 1); fiber != self) {
    switch_to(*fiber, false);
  }
}

void tick_slow() {
  Launch& launch = *cluster->launch;
  cluster->ticks = launch.stress() ? 1 + (random_bits() & 63) : TICKS;
  if (launch.stop.load(std::memory_order_relaxed)) leave_to_main();
  if (now() > launch.deadline)
    fail(TSC_EMU_TIMEOUT, self->waits_at, "the kernel still runs after %u ms", launch.options.timeout_ms);
  if (!self->done && self->waits_for == nullptr) give_way();
}

u32 random_bits() {
  u64& s = cluster->random_state;
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return static_cast<u32>(s >> 20);
}

bool collective(const char* what, void* argument, u32 at) {
  Warp& warp = *self->warp;
  if (warp.alive != ~0u)
    fail(TSC_EMU_DIVERGED, at, "%s needs all 32 lanes, but %d have left the kernel", what, 32 - __builtin_popcount(warp.alive));
  if (warp.arrived == 0) {
    warp.collective = what;
    warp.collective_at = at;
  } else if (warp.collective_at != at || (warp.collective != what && strcmp(warp.collective, what) != 0)) {
    fail(TSC_EMU_DIVERGED, at, "at %s while %u lanes of its warp stand at %s, line %u", what, warp.arrived, warp.collective,
         warp.collective_at);
  }
  warp.slot[self->lane] = argument;
  if (++warp.arrived < 32) {
    wait(what, at);
    return false;
  }
  warp.arrived = 0;
  cluster->collectives++;
  for (u32 lane = 0; lane < 32; lane++) warp.lanes[lane].waits_for = nullptr;
  warp.runnable = ~0u;
  return true;
}

const Index3& thread_index() { return self->place; }
const Index3& block_size() { return cluster->launch->block; }
const Index3& block_index() { return self->block->index; }
const Index3& grid_size() { return cluster->launch->grid; }
u32 lane_index() { return self->lane; }
u32 cluster_rank() { return self->block->rank; }
u32 cluster_size() { return static_cast<u32>(cluster->blocks.size()); }

}  // namespace tsc::emu
