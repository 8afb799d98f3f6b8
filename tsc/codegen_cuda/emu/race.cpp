// Vector clocks and shadow memory: see race.hpp.
#include <algorithm>

#include "state.hpp"

namespace tsc::emu {

namespace {

constexpr u64 PAGE_CELLS = 1024;

Race* race() { return cluster->launch->race; }

void merge(Clock& into, const Clock& from);

void merge_other(std::map<u32, ClockRef>& into, u32 id, const ClockRef& from) {
  ClockRef& known = into[id];
  if (!known) {
    known = from;
  } else if (known != from) {
    auto joined = std::make_shared<Clock>(*known);
    merge(*joined, *from);
    known = joined;
  }
}

void merge(Clock& into, const Clock& from) {
  if (into.seen.size() < from.seen.size()) into.seen.resize(from.seen.size(), 0);
  u32* const target = into.seen.data();
  const u32* const source = from.seen.data();
  for (size_t i = 0; i < from.seen.size(); i++) target[i] = std::max(target[i], source[i]);
  for (const auto& [id, clock] : from.other) merge_other(into.other, id, clock);
}

ClockRef joined(const ClockRef& a, const ClockRef& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  auto out = std::make_shared<Clock>(*a);
  merge(*out, *b);
  return out;
}

// Put what `fiber` knows of its own tracks where others look for it.
void publish_own(Clock& clock, const Fiber& fiber) {
  const u32 threads = race()->threads();
  if (clock.seen.size() < size_t{TRACKS} * threads) clock.seen.resize(size_t{TRACKS} * threads, 0);
  for (u32 track = 0; track < TRACKS; track++) {
    u32& seen = clock.seen[size_t{track} * threads + fiber.index];
    seen = std::max(seen, fiber.clock.own[track]);
  }
}

// What a clock of cluster `theirs` tells a thread of cluster `mine`.
void receive(Clock& into, u32 mine, u32 theirs, const ClockRef& from) {
  if (mine == theirs) {
    merge(into, *from);
    return;
  }
  merge_other(into.other, theirs, from);
  for (const auto& [id, clock] : from->other) {
    if (id == mine)
      merge(into, *clock);
    else
      merge_other(into.other, id, clock);
  }
}

}  // namespace

Clock& Join::clock() {
  if (!clock_)
    clock_ = std::make_shared<Clock>();
  else if (clock_.use_count() > 1)
    clock_ = std::make_shared<Clock>(*clock_);
  last_base_ = last_result_ = nullptr;
  return *clock_;
}

void Join::add(Fiber& fiber) {
  if (!race()) return;
  Clock& into = clock();
  const ClockRef& base = fiber.clock.base;
  if (base && std::find(merged_.rbegin(), merged_.rend(), base) == merged_.rend()) {
    merge(into, *base);
    merged_.push_back(base);
  }
  publish_own(into, fiber);
  fiber.clock.own[PROGRAM]++;
}

void Join::add_actor(u32 actor, u32 time) {
  if (!race()) return;
  Clock& into = clock();
  if (into.seen.size() <= actor) into.seen.resize(size_t{actor} + 1, 0);
  into.seen[actor] = std::max(into.seen[actor], time);
}

void Join::meet(Fiber& fiber) const {
  if (!clock_) return;
  const ClockRef base = fiber.clock.base;
  if (base && base == last_base_) {
    fiber.clock.base = last_result_;
    return;
  }
  const bool contained = !base || std::find(merged_.rbegin(), merged_.rend(), base) != merged_.rend();
  fiber.clock.base = contained ? ClockRef(clock_) : joined(base, clock_);
  last_base_ = base;
  last_result_ = fiber.clock.base;
}

void Join::clear() {
  clock_ = nullptr;
  merged_.clear();
  last_base_ = last_result_ = nullptr;
}

void synchronise(const std::vector<Fiber*>& fibers) {
  if (!race()) return;
  Join join;
  for (Fiber* fiber : fibers) join.add(*fiber);
  for (Fiber* fiber : fibers) join.meet(*fiber);
}

Cell& Shadow::at(u64 word) {
  const u64 page = word / PAGE_CELLS;
  if (page != last_) {
    std::unique_ptr<Cell[]>& cells = pages_[page];
    if (!cells) cells = std::make_unique<Cell[]>(PAGE_CELLS);
    last_ = page;
    last_page_ = cells.get();
  }
  return last_page_[word % PAGE_CELLS];
}

Cell& Shadow::byte_of(Cell& cell, u64 byte) {
  if (cell.bytes == 0) {
    for (u32 i = 0; i < 4; i++) {
      Cell part = cell;
      if (i != 0 && part.more != 0) {
        std::vector<Mark> reads = more_[part.more - 1];
        more_.push_back(std::move(reads));
        part.more = static_cast<u32>(more_.size());
      }
      bytes_.push_back(part);
    }
    cell.bytes = static_cast<u32>(bytes_.size()) - 3;
  }
  return bytes_[cell.bytes - 1 + byte];
}

std::vector<Mark>& Shadow::more(Cell& cell) {
  if (cell.more == 0) {
    more_.emplace_back();
    cell.more = static_cast<u32>(more_.size());
  }
  return more_[cell.more - 1];
}

void Race::begin_cluster(u32 id) {
  cluster_ = id;
  actors_ = TRACKS * threads_;
  shared_.clear();
  published_shared_.clear();
}

void Race::begin_thread(Fiber& fiber) { fiber.clock = {nullptr, {1, 0, 0, 0}, nullptr, nullptr, {}}; }

bool Race::knows(const Fiber& fiber, const Mark& mark) const {
  const ThreadClock& clock = fiber.clock;
  if (mark.cluster == cluster_ + 1) {
    if (mark.actor < TRACKS * threads_ && mark.actor % threads_ == fiber.index)
      return clock.own[mark.actor / threads_] >= mark.time;
    return clock.base && clock.base->seen.size() > mark.actor && clock.base->seen[mark.actor] >= mark.time;
  }
  if (!clock.base) return false;
  const auto found = clock.base->other.find(mark.cluster - 1);
  return found != clock.base->other.end() && found->second->seen.size() > mark.actor &&
         found->second->seen[mark.actor] >= mark.time;
}

Access Race::own(u32 kind, u32 at) { return {self, self->index, self->clock.own[PROGRAM], kind, at, false}; }

Access Race::on_track(Track track, u32 time, u32 kind, u32 at) const {
  return {self, static_cast<u32>(track) * threads_ + self->index, time, kind, at, false};
}

void Race::shared(Block& owner, u32 offset, u32 bytes, const Access& access) {
  walk(shared_[owner.rank], offset, bytes, access, true, (static_cast<u64>(owner.rank) << 24) + offset);
}

void Race::global(u32 range, u64 offset, u32 bytes, const Access& access, const void* address) {
  walk(global_[range], offset, bytes, access, false, reinterpret_cast<uintptr_t>(address));
}

void Race::walk(Shadow& shadow, u64 offset, u32 bytes, const Access& access, bool is_shared, u64 address) {
  for (u64 word = offset / 4; word * 4 < offset + bytes; word++) {
    Cell& cell = shadow.at(word);
    const u64 low = std::max(offset, word * 4), high = std::min(offset + bytes, word * 4 + 4);
    if (cell.bytes == 0 && high - low == 4) {
      touch(shadow, cell, access, is_shared, address + (low - offset));
      continue;
    }
    for (u64 byte = low; byte < high; byte++)
      touch(shadow, shadow.byte_of(cell, byte - word * 4), access, is_shared, address + (byte - offset));
  }
}

void Race::touch(Shadow& shadow, Cell& cell, const Access& access, bool is_shared, u64 address) {
  const Fiber& fiber = *access.fiber;
  const Mark mark{cluster_ + 1, access.actor, access.time, access.at & 0xfffffff, access.kind};
  const bool written = cell.write.cluster != 0, atomics = cell.write.kind == TSC_EMU_ATOMIC && access.kind == TSC_EMU_ATOMIC;
  if (access.kind == TSC_EMU_READ && is_shared && !written)
    fail(TSC_EMU_UNINITIALISED, access.at,
         "shared memory at %llu is read, but nothing has written it (or not yet: is a barrier missing?)", address);
  if (access.constant && written)
    fail(TSC_EMU_PROTOCOL, access.at, "load_constant reads global memory that this kernel writes at line %u", cell.write.at);
  if (written && !atomics && !knows(fiber, cell.write)) report(cell.write, access, is_shared, address);
  if (access.kind == TSC_EMU_READ) {
    if (is_shared && access.actor >= BULK_READ * threads_ && cell.write.actor < threads_) check_async_fence(cell.write, access);
    record_read(shadow, cell, mark, fiber);
    return;
  }
  if (cell.read.cluster != 0 && !knows(fiber, cell.read)) report(cell.read, access, is_shared, address);
  if (cell.more != 0) {
    for (const Mark& read : shadow.more(cell))
      if (!knows(fiber, read)) report(read, access, is_shared, address);
    shadow.more(cell).clear();
  }
  cell.read.cluster = 0;
  cell.write = mark;
}

// What a thread wrote is seen by the copy engine and by wgmma if it then called fence_async_shared, and then met whoever issues
// the read.
void Race::check_async_fence(const Mark& write, const Access& access) const {
  const std::vector<u32>& fences = cluster->fibers[write.actor].clock.async_fences;
  const auto fence = std::upper_bound(fences.begin(), fences.end(), write.time);
  if (fence == fences.end() || !knows(*access.fiber, {write.cluster, write.actor, *fence, 0, 0}))
    fail(TSC_EMU_PROTOCOL, access.at,
         "this reads, asynchronously, shared memory that an ordinary store (line %u) wrote without fence_async_shared after it",
         write.at);
}

// A read that this one is known to follow need not be kept: who is ordered after this read is ordered after that one.
void Race::record_read(Shadow& shadow, Cell& cell, const Mark& mark, const Fiber& fiber) {
  const auto covers = [&](const Mark& old) {
    return (old.actor == mark.actor && old.cluster == mark.cluster) || knows(fiber, old);
  };
  if (cell.read.cluster == 0 || covers(cell.read)) {
    cell.read = mark;
    return;
  }
  std::vector<Mark>& reads = shadow.more(cell);
  for (Mark& read : reads)
    if (covers(read)) {
      read = mark;
      return;
    }
  reads.push_back(mark);
}

tsc_emu_access Race::place(const Mark& mark) const {
  const Launch& launch = *cluster->launch;
  const u32 track = mark.actor / threads_, index = track < TRACKS ? mark.actor % threads_ : 0, id = mark.cluster - 1;
  const u32 rank = index / launch.threads, thread = index % launch.threads;
  const u32 across = launch.grid.x / launch.cluster.x, down = launch.grid.y / launch.cluster.y;
  return {mark.at,
          mark.kind,
          std::min<u32>(track, TRACKS),
          {id % across * launch.cluster.x + rank % launch.cluster.x,
           id / across % down * launch.cluster.y + rank / launch.cluster.x % launch.cluster.y,
           id / across / down * launch.cluster.z + rank / launch.cluster.x / launch.cluster.y},
          {thread % launch.block.x, thread / launch.block.x % launch.block.y, thread / launch.block.x / launch.block.y}};
}

std::string Race::text(const Mark& mark) const {
  static const char* const kinds[] = {"read", "write", "atomic"};
  static const char* const tracks[] = {"", "cp.async ", "bulk copy's ", "bulk copy's ", "asynchronous "};
  const tsc_emu_access where = place(mark);
  char out[192];
  snprintf(out, sizeof out, "%s%s%s (line %u) of thread (%u,%u,%u) of block (%u,%u,%u)", tracks[where.asynchronous],
           kinds[where.kind], where.asynchronous ? " that may be under way" : "", where.line, where.thread.x, where.thread.y,
           where.thread.z, where.block.x, where.block.y, where.block.z);
  return out;
}

void Race::report(const Mark& earlier, const Access& access, bool is_shared, u64 address) const {
  const Mark later{cluster_ + 1, access.actor, access.time, access.at & 0xfffffff, access.kind};
  char where[64];
  snprintf(where, sizeof where, is_shared ? "shared memory at %llu" : "global memory at 0x%llx", address);
  Failure failure{};
  failure.status = TSC_EMU_RACE_FOUND;
  failure.message = "race on " + std::string(where) + ": " + text(later) + " and, before it, " + text(earlier) +
                    ", with nothing that orders them";
  failure.access[0] = place(later);
  failure.access[1] = place(earlier);
  failure.address = address;
  failure.shared = is_shared;
  fail_with(std::move(failure));
}

void Race::fence(Fiber& fiber) {
  ThreadClock& clock = fiber.clock;
  clock.base = joined(clock.base, clock.acquired);
  clock.acquired = nullptr;
  auto snapshot = clock.base ? std::make_shared<Clock>(*clock.base) : std::make_shared<Clock>();
  publish_own(*snapshot, fiber);
  clock.released = snapshot;
  clock.own[PROGRAM]++;
}

void Race::async_fence(Fiber& fiber) { fiber.clock.async_fences.push_back(++fiber.clock.own[PROGRAM]); }

void Race::atomic(Fiber& fiber, const void* address, bool is_shared) {
  ThreadClock& clock = fiber.clock;
  Published& published = (is_shared ? published_shared_ : published_)[address];
  auto all = std::make_shared<Clock>();
  if (published.clock) {
    auto found = clock.acquired ? std::make_shared<Clock>(*clock.acquired) : std::make_shared<Clock>();
    receive(*found, cluster_, published.cluster, published.clock);
    clock.acquired = found;
    receive(*all, cluster_, published.cluster, published.clock);
  }
  if (clock.released) merge(*all, *clock.released);
  published = {cluster_, all};
}

}  // namespace tsc::emu
