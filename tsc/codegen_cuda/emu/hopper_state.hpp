// The emulator's own state behind hopper.hpp: one engine a cluster, which holds what sm_90a does asynchronously.
//
// In lazy, race and stress modes a load lands when no thread can run (in stress, now and then before); products and stores do
// so in lazy and stress. Then what comes first is what an unlawful order would show soonest: loads, which overwrite; products,
// which read; stores.
#pragma once
#include "hopper.hpp"
#include "state.hpp"

namespace tsc::emu {

struct Mbarrier {
  u32 rank, offset;
  u32 arrivals, pending;
  int64_t bytes;  // expected minus landed
  u64 phase;
  std::vector<Fiber*> waiting;  // for the phase under way
  Join next, done;              // what arrived in it, and in the one before
  std::vector<Mark> arrived, before;
  Mark made;
  u32 actor, time;   // of its transactions, in race mode
  std::string text;  // of the report of a deadlock
};

struct Load {
  struct Target {
    Mbarrier* barrier;
    u64 phase;
    u32 time;
    u8* to;
    u32 bytes;
  };
  const Fiber* fiber;
  u32 at;
  tsc_emu_tensor_map map;
  i32 coordinate[5];
  std::vector<Target> targets;
};

struct Store {
  Fiber* fiber;
  u32 at, group;
  tsc_emu_tensor_map map;
  i32 coordinate[5];
  const u8* from;
  std::vector<u8> data;
  bool has_read;
};

// Accumulators that products under way will be written to: one array in each of the 128 lanes. Meanwhile these hold POISON.
struct Flight {
  void* d[128];
  u32 fences[128];  // when it last took off
  u32 registers, products;
  std::vector<u32> values;  // lane by lane
};

struct Product {
  u32 at, group;
  int n, kind;
  bool accumulate;
  std::vector<u8> a;  // registers: 64 rows of 32 bytes; else empty
  u64 a_descriptor, b_descriptor;
  bool a_mn, b_mn;
  Flight* flight;
};

struct Multiplicands {
  void* d;
  const u32* a;
  u64 a_descriptor, b_descriptor;
  bool accumulate;
  int n, kind;
  bool a_mn, b_mn;
};

struct WarpGroup {
  Fiber* lanes;  // 128
  u32 arrived = 0, arrived_at = 0;
  const Multiplicands* slot[128];
  u32 committed[128] = {}, fences[128] = {};
  std::deque<Product> products;
  std::map<void*, Flight> flights;              // by lane 0's array
  std::vector<std::pair<Fiber*, u32>> waiting;  // for all groups up to this one
  u32 actor = 0;
};

struct BulkWaiter {
  Fiber* fiber;
  u32 group;
  bool read;
};

class Hopper : public Engine {
 public:
  Hopper();
  bool land_one() override;
  bool lands_later() const { return later_; }
  bool loads_land_later() const { return later_ || cluster->launch->race; }

  std::unordered_map<u32, Mbarrier> barriers;  // by rank << 24 | offset
  std::vector<Load> loads;
  std::deque<Store> stores;
  std::vector<u32> bulk_committed;  // by fiber
  std::vector<BulkWaiter> bulk_waiting;
  std::vector<WarpGroup> groups;

  u32 cluster_count = 0;            // arrivals at the cluster's barrier
  std::vector<u8> cluster_arrived;  // by fiber: 0, or where it stands between arrival and wait
  std::vector<Fiber*> cluster_waiting;
  Join cluster_next, cluster_done;

  bool land_load();
  bool land_product();
  bool land_store();
  bool complete_cluster_barrier();

 private:
  bool later_;
};

// This cluster's engine, made when first asked for.
Hopper& hopper();
// As fail, for an operation of `fiber` that lands while another runs.
[[noreturn]] void fail_for(const Fiber& fiber, int32_t status, u32 at, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

// The barrier at a window address; fails where there is none.
Mbarrier& find_mbarrier(u32 address, u32 at);
// Complete the phase if nothing is missing.
void settle(Mbarrier& barrier, const Fiber& by, u32 at);
// Where the byte at `offset` of shared memory goes in a swizzle of `span` bytes (0: none).
inline u32 swizzle_bytes(u32 offset, u32 span) { return span == 0 ? offset : offset ^ (offset >> 3 & (span - 16)); }

}  // namespace tsc::emu
