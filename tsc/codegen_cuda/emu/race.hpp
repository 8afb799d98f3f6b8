// Happens-before: vector clocks of threads and of what runs asynchronously for them, and shadow memory that remembers who
// touched what.
//
// An *actor* is anything whose accesses are ordered among themselves. A cluster of T threads has TRACKS * T of them, track by
// track: actor `track * T + i` acts for thread i; engines add more (new_actor). Each actor has a time that only grows; an
// access is marked with the actor and its time. Thread t may touch what mark (a, n) touched if t *knows* a up to n: knowledge
// spreads where threads synchronise.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../device/platform.cuh"
#include "abi.h"

namespace tsc::emu {

struct Fiber;
struct Block;
struct Clock;
using ClockRef = std::shared_ptr<const Clock>;

enum Track { PROGRAM, CP_ASYNC, BULK_READ, BULK_WRITE, TRACKS };

// What is known: up to which time of each actor of the own cluster, and of other clusters (met through global atomics).
struct Clock {
  std::vector<u32> seen;
  std::map<u32, ClockRef> other;
};

// A thread's knowledge: `base`, shared with those it last met, but for its own tracks, which `own` holds. own[PROGRAM] is the
// time its next access is marked with; own[track] is up to which time it has waited for that track.
struct ThreadClock {
  ClockRef base;
  u32 own[TRACKS];
  ClockRef released;  // knowledge at the last fence: what an atomic publishes
  ClockRef acquired;  // what atomics found: known from the next fence on
  std::vector<u32>
      async_fences;  // times from which on its earlier writes to shared memory can be read asynchronously; ascending
};

// A meeting of threads: knowledge flows in by `add`, and all of it to those it ends for. Does nothing outside race mode.
class Join {
 public:
  void add(Fiber& fiber);               // the fiber releases what it knows and moves to its next time
  void add_actor(u32 actor, u32 time);  // an asynchronous actor's operations up to `time` are over
  void meet(Fiber& fiber) const;        // the fiber acquires all that was added
  void clear();

 private:
  Clock& clock();
  std::shared_ptr<Clock> clock_;
  std::vector<ClockRef> merged_;
  mutable ClockRef last_base_, last_result_;
};

// Join all of `fibers` with each other: a barrier's effect.
void synchronise(const std::vector<Fiber*>& fibers);

struct Mark {
  u32 cluster;  // id + 1; 0 for none
  u32 actor, time;
  u32 at : 28, kind : 4;
};

// The shadow of 4 bytes: the last write, the reads since that nothing orders, and, once single bytes were touched, four cells
// of its own.
struct Cell {
  Mark write, read;
  u32 more;   // 1 + index of further reads
  u32 bytes;  // 1 + index of the first of four cells, one a byte
};

// The cells of one memory, made when first touched.
class Shadow {
 public:
  Cell& at(u64 word);
  // The cell of byte `byte` of the word that `cell` stands for.
  Cell& byte_of(Cell& cell, u64 byte);
  // The further reads of `cell`.
  std::vector<Mark>& more(Cell& cell);

 private:
  std::unordered_map<u64, std::unique_ptr<Cell[]>> pages_;
  u64 last_ = ~0ull;
  Cell* last_page_ = nullptr;
  std::vector<std::vector<Mark>> more_;
  std::vector<Cell> bytes_;
};

// An access to be checked, done by `fiber` itself or on its behalf by `actor`.
struct Access {
  Fiber* fiber;
  u32 actor, time, kind, at;
  bool constant;  // through the read-only path: nobody may have written it
};

class Race {
 public:
  explicit Race(u32 threads, u32 ranges) : threads_(threads), global_(ranges), actors_(TRACKS * threads) {}

  // A new cluster begins: its threads know nothing.
  void begin_cluster(u32 id);
  void begin_thread(Fiber& fiber);

  // Check and remember. Shared memory by its owner and offset, global memory by range and offset.
  void shared(Block& owner, u32 offset, u32 bytes, const Access& access);
  void global(u32 range, u64 offset, u32 bytes, const Access& access, const void* address);

  // An access by the running thread itself; by its asynchronous track, as part of the group that ends at `time`.
  static Access own(u32 kind, u32 at);
  Access on_track(Track track, u32 time, u32 kind, u32 at) const;
  // By an engine's actor, on behalf of `fiber`, which knows what the operation may follow.
  static Access by_actor(Fiber& fiber, u32 actor, u32 time, u32 kind, u32 at) { return {&fiber, actor, time, kind, at, false}; }

  // A further actor of this cluster (an mbarrier's transactions, a warp group's wgmma): its times start at 1.
  u32 new_actor() { return actors_++; }

  // The running thread's fence, and its atomic on `address`, which publishes and receives.
  void fence(Fiber& fiber);
  void async_fence(Fiber& fiber);
  void atomic(Fiber& fiber, const void* address, bool is_shared);

  u32 threads() const { return threads_; }
  u32 cluster_id() const { return cluster_; }
  bool knows(const Fiber& fiber, const Mark& mark) const;

 private:
  void walk(Shadow& shadow, u64 offset, u32 bytes, const Access& access, bool is_shared, u64 address);
  void touch(Shadow& shadow, Cell& cell, const Access& access, bool is_shared, u64 address);
  void check_async_fence(const Mark& write, const Access& access) const;
  void record_read(Shadow& shadow, Cell& cell, const Mark& mark, const Fiber& fiber);
  [[noreturn]] void report(const Mark& earlier, const Access& access, bool is_shared, u64 address) const;
  tsc_emu_access place(const Mark& mark) const;
  std::string text(const Mark& mark) const;

  u32 threads_;  // of a cluster
  u32 cluster_ = 0;
  std::map<u32, Shadow> shared_;  // by rank
  std::vector<Shadow> global_;
  u32 actors_;
  struct Published {
    u32 cluster;
    ClockRef clock;
  };
  std::unordered_map<const void*, Published> published_, published_shared_;
};

}  // namespace tsc::emu
