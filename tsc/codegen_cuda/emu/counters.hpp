// Counters of traffic: a warp's accesses are put together from its lanes', by source line and occurrence, since lanes run one
// after another.
#pragma once
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "../device/platform.cuh"
#include "abi.h"

namespace tsc::emu {

enum Traffic { SHARED_LOAD, SHARED_STORE, GLOBAL_LOAD, GLOBAL_STORE };

class Tally {
 public:
  // Lane `lane` of warp `warp` (in its cluster) touches `bytes` bytes at `address`; with bytes 0 it stood by.
  void lane(u32 warp, u32 lane, Traffic traffic, u64 address, u32 bytes, u32 at);
  // A whole warp's shared access of 8 x 16 bytes at once (ldmatrix's unit).
  void rows(const u32 (&address)[8], u32 at);
  // Bytes that an engine moves: no warp's requests, so neither conflicts nor sectors.
  void bulk(Traffic traffic, u64 bytes) { bytes_[traffic] += bytes; }
  // The cluster is over: account for what not all lanes took part in.
  void flush();
  // Add everything to `report`.
  void add_to(tsc_emu_report& report) const;

 private:
  struct Record {
    u32 lanes, active, bytes;
    u64 address[32];
  };
  struct Stream {
    u32 count[32];
    u32 done;  // records already accounted for
    std::deque<Record> records;
  };
  void account(const Record& record, Traffic traffic, u32 at);
  static bool paired(const Record& record);
  void shared_phase(const u64* address, u32 count, u32 bytes, tsc_emu_line& line);
  static u32 wavefronts(const u64* address, u32 count, u32 bytes);

  std::unordered_map<u64, Stream> streams_;
  std::map<u32, tsc_emu_line> lines_;
  u64 bytes_[4] = {}, paired_wavefronts_ = 0;
};

}  // namespace tsc::emu
