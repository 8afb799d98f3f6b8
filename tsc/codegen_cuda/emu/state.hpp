// The emulator's own state and the calls its parts make of each other. Kernel sources never see this file.
//
// The unit that runs is a cluster of blocks (one block where there are no clusters): all its threads are fibers of one host
// thread, so nothing here needs a lock. A fiber runs until it waits; clusters are spread over host threads, and share only
// Launch.
#pragma once
#include <time.h>

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../device/platform.cuh"
#include "abi.h"
#include "counters.hpp"
#include "race.hpp"

namespace tsc::emu {

struct Block;
struct Warp;

// One cp.async that has not landed (lazy and stress modes).
struct PendingCopy {
  u8* target;
  const void* source;
  u32 bytes;
  bool predicate;
};

// A CUDA thread.
struct Fiber {
  void* stack_pointer;
  u32 index;   // in the cluster
  u32 thread;  // in the block
  u32 lane;
  Index3 place;
  Block* block;
  Warp* warp;
  bool done;
  const char* waits_for;  // null where it can run
  u32 waits_at;
  std::deque<std::vector<PendingCopy>> groups;
  std::vector<PendingCopy> open;
  u32 committed;  // groups of cp.async closed so far
  ThreadClock clock;
  void* fake_stack;  // address sanitizer's
};

struct PartialSync {
  u32 mask, arrived;
};

struct Warp {
  Block* block;
  Fiber* lanes;
  u32 runnable, alive;  // a bit a lane
  u32 arrived;          // lanes that stand at `collective`
  const char* collective;
  u32 collective_at;
  void* slot[32];  // what each lane brought to it
  std::vector<PartialSync> partial;
  u32 barrier_at[16];  // line at which its first lane reached a barrier
  u32 barrier_count[16];
};

struct Barrier {
  u32 arrived, threads;
  std::vector<Fiber*> waiting;
  Join clock;
};

struct Block {
  Index3 index;
  u32 rank;  // in its cluster
  u8* shared;
  Fiber* fibers;
  u32 alive;
  Barrier barriers[16];
};

// Something asynchronous beside the threads (TMA, wgmma, ...): what it has under way lands when the scheduler or its own wait
// says so.
struct Engine {
  virtual ~Engine() = default;
  // Land one operation, if there is any: called when no thread can run, and now and then in stress mode. False: there was none.
  virtual bool land_one() = 0;
};

struct Failure {
  int32_t status;
  std::string message;
  tsc_emu_access access[2];
  uint64_t address;
  u32 shared;
};

// What all clusters of a launch share, read-only while it runs but for `stop`.
struct Launch {
  const Kernel* kernel;
  Index3 grid, block, cluster;
  u32 threads;  // of a block
  u32 shared_bytes;
  void** arguments;
  tsc_emu_options options;
  int64_t deadline;  // steady clock, nanoseconds
  Race* race;        // null unless in race mode
  std::atomic<bool> stop;
  tsc_emu_report* report;

  bool lazy() const { return options.mode == TSC_EMU_LAZY; }
  bool stress() const { return options.mode == TSC_EMU_STRESS; }
};

// A cluster in flight.
struct Cluster {
  Launch* launch;
  u32 id;
  std::vector<Block> blocks;
  std::vector<Warp> warps;
  std::vector<Fiber> fibers;
  std::vector<std::unique_ptr<Engine>> engines;  // emptied before each cluster
  u32 alive;
  u32 current;  // warp
  u32 ticks;
  u64 random_state;
  void* main_stack_pointer;
  std::unique_ptr<Failure> failure;
  u32 hint;  // the range last hit
  Tally tally;
  u64 switches, collectives, mma_instructions;
  std::vector<float> scratch;  // of matrix collectives
  char* stacks;
  size_t stacks_bytes;
  u8* shared;
  const void* main_stack_bottom;  // address sanitizer's
  size_t main_stack_bytes;
};

extern thread_local Cluster* cluster;
extern thread_local Fiber* self;

// ---- scheduler.cpp

// Nanoseconds of a steady clock.
int64_t now();

// Run all threads of cluster `id` to their end, or to the first failure.
void run_cluster(Cluster& state, u32 id);
// Stop the launch here: `self` did something wrong at line `at`.
[[noreturn]] void fail(int32_t status, u32 at, const char* format, ...) __attribute__((format(printf, 3, 4)));
[[noreturn]] void fail_with(Failure failure);
// Let others run until `self` is woken. `what` names it in the report of a deadlock.
void wait(const char* what, u32 at);
void wake(Fiber& fiber);
// Let another thread run, if any; `self` can go on later.
void give_way();
// Called by every primitive that does not wait: bounds the time a loop can run, and varies the order in stress mode.
void tick_slow();
inline void tick() {
  if (--cluster->ticks == 0) tick_slow();
}
u32 random_bits();
// All 32 lanes bring `argument` to collective `what`. True in the lane that came last, which then does the work while the
// others still stand; the others return, false, after it.
bool collective(const char* what, void* argument, u32 at);
std::string describe(const Fiber& fiber);

// ---- memory.cpp

// Where `bytes` bytes at window address `address` lie; fails where they are outside, or the address is no multiple of
// `alignment`. `owner` becomes the block that has them. Bits 24 and up of an address: 0 for the own block, else 1 + the rank in
// the cluster.
u8* shared_at(u32 address, u32 bytes, u32 alignment, u32 at, Block** owner);
// Fails unless all of [address, address + bytes) is in one registered range (and writable, for a store).
void check_global(const void* address, u32 bytes, bool store, u32 alignment, u32 at);
void land(const PendingCopy& copy);

}  // namespace tsc::emu
