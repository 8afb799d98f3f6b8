// What a warp's access costs: shared wavefronts and 32-byte global sectors.
#include "counters.hpp"

#include <algorithm>
#include <cstring>

namespace tsc::emu {

void Tally::lane(u32 warp, u32 lane, Traffic traffic, u64 address, u32 bytes, u32 at) {
  bytes_[traffic] += bytes;
  Stream& stream = streams_[static_cast<u64>(warp) << 40 | static_cast<u64>(at) << 2 | traffic];
  const u32 place = stream.count[lane]++ - stream.done;
  while (stream.records.size() <= place) stream.records.push_back(Record{});
  Record& record = stream.records[place];
  record.lanes |= 1u << lane;
  record.address[lane] = address;
  if (bytes != 0) {
    record.active |= 1u << lane;
    record.bytes = bytes;
  }
  while (!stream.records.empty() && stream.records.front().lanes == ~0u) {
    account(stream.records.front(), traffic, at);
    stream.records.pop_front();
    stream.done++;
  }
}

void Tally::rows(const u32 (&address)[8], u32 at) {
  u64 wide[8];
  for (u32 i = 0; i < 8; i++) wide[i] = address[i] & 0xffffff;
  bytes_[SHARED_LOAD] += 128;
  tsc_emu_line& line = lines_[at];
  line.shared_requests++;
  shared_phase(wide, 8, 16, line);
  paired_wavefronts_ += wavefronts(wide, 8, 16);
}

void Tally::flush() {
  for (auto& [key, stream] : streams_)
    for (const Record& record : stream.records)
      account(record, static_cast<Traffic>(key & 3), static_cast<u32>(key >> 2 & 0xfffffff));
  streams_.clear();
}

void Tally::account(const Record& record, Traffic traffic, u32 at) {
  if (record.active == 0) return;
  tsc_emu_line& line = lines_[at];
  if (traffic == SHARED_LOAD || traffic == SHARED_STORE) {
    line.shared_requests++;
    // 8-byte accesses go by halves of the warp, 16-byte accesses by quarters.
    const u32 lanes = record.bytes <= 4 ? 32 : 128 / record.bytes;
    for (u32 first = 0; first < 32; first += lanes) {
      u64 address[32];
      u32 count = 0;
      for (u32 lane = first; lane < first + lanes; lane++)
        if (record.active >> lane & 1) address[count++] = record.address[lane];
      if (count != 0) shared_phase(address, count, record.bytes, line);
    }
    const u32 together = traffic == SHARED_LOAD && lanes < 32 && paired(record) ? 2 * lanes : lanes;
    for (u32 first = 0; first < 32; first += together) {
      u64 address[32];
      u32 count = 0;
      for (u32 lane = first; lane < first + together; lane++)
        if (record.active >> lane & 1) address[count++] = record.address[lane];
      if (count != 0) paired_wavefronts_ += wavefronts(address, count, record.bytes);
    }
    return;
  }
  std::vector<u64> sectors, addresses;
  for (u32 lane = 0; lane < 32; lane++)
    if (record.active >> lane & 1) {
      sectors.push_back(record.address[lane] / 32);
      addresses.push_back(record.address[lane]);
    }
  const auto distinct = [](std::vector<u64>& values) {
    std::sort(values.begin(), values.end());
    return static_cast<u64>(std::unique(values.begin(), values.end()) - values.begin());
  };
  line.global_requests++;
  line.global_sectors += distinct(sectors);
  line.ideal_sectors += (distinct(addresses) * record.bytes + 31) / 32;
}

// Whether each active lane loads from where the next one does (0 and 1, 2 and 3, ...), or each from where the one two further
// does (0 and 2, 1 and 3, ...): then registers come back packed
// (https://forums.developer.nvidia.com/t/unexpected-shared-memory-bank-conflict/77228/2).
bool Tally::paired(const Record& record) {
  for (u32 apart = 1; apart <= 2; apart++) {
    bool same = true;
    for (u32 lane = 0; lane < 32; lane++) {
      const u32 other = lane ^ apart;
      if ((record.active >> lane & 1) && (record.active >> other & 1)) same &= record.address[lane] == record.address[other];
    }
    if (same) return true;
  }
  return false;
}

// Lanes served together: as many wavefronts as the busiest bank has different words. The least possible is one.
void Tally::shared_phase(const u64* address, u32 count, u32 bytes, tsc_emu_line& line) {
  const u32 most = wavefronts(address, count, bytes);
  line.shared_wavefronts += most;
  line.bank_conflicts += most - 1;
}

u32 Tally::wavefronts(const u64* address, u32 count, u32 bytes) {
  u64 words[32][32];
  u32 used[32] = {}, most = 1;
  for (u32 i = 0; i < count; i++)
    for (u64 word = address[i] / 4; word * 4 < address[i] + bytes; word++) {
      const u32 bank = static_cast<u32>(word % 32);
      if (std::find(words[bank], words[bank] + used[bank], word) == words[bank] + used[bank]) words[bank][used[bank]++] = word;
      most = std::max(most, used[bank]);
    }
  return most;
}

void Tally::add_to(tsc_emu_report& report) const {
  report.global_load_bytes += bytes_[GLOBAL_LOAD];
  report.global_store_bytes += bytes_[GLOBAL_STORE];
  report.shared_load_bytes += bytes_[SHARED_LOAD];
  report.shared_store_bytes += bytes_[SHARED_STORE];
  report.paired_wavefronts += paired_wavefronts_;
  for (const auto& [at, line] : lines_) {
    report.shared_requests += line.shared_requests;
    report.shared_wavefronts += line.shared_wavefronts;
    report.bank_conflicts += line.bank_conflicts;
    report.global_requests += line.global_requests;
    report.global_sectors += line.global_sectors;
    report.ideal_sectors += line.ideal_sectors;
    tsc_emu_line* const end = report.lines + report.line_count;
    tsc_emu_line* place =
        std::lower_bound(report.lines, end, at, [](const tsc_emu_line& have, u32 wanted) { return have.line < wanted; });
    if (place == end || place->line != at) {
      if (report.line_count == TSC_EMU_LINES) continue;
      std::copy_backward(place, end, end + 1);
      report.line_count++;
      *place = tsc_emu_line{};
      place->line = at;
    }
    place->shared_requests += line.shared_requests;
    place->shared_wavefronts += line.shared_wavefronts;
    place->bank_conflicts += line.bank_conflicts;
    place->global_requests += line.global_requests;
    place->global_sectors += line.global_sectors;
    place->ideal_sectors += line.ideal_sectors;
  }
}

}  // namespace tsc::emu
