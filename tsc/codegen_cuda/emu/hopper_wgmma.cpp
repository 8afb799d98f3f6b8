// wgmma: the whole warp group's work, done when it lands.
#include <algorithm>

#include "hopper_state.hpp"

namespace tsc::emu {

namespace {

constexpr u32 POISON = 0x7fbad000;  // a signalling NaN
constexpr u32 ROWS = 64, ROW_BYTES = 32;

typedef float Floats __attribute__((vector_size(32)));
typedef u32 Words __attribute__((vector_size(32)));

// c[ROWS][columns] += a[ROWS][depth] b[depth][columns], k ascending for every number. Four rows at a time share what they read
// of b.
template <class Vector, class T>
__attribute__((always_inline)) inline void multiply(T* c, const T* a, const T* b, u32 columns, u32 depth) {
  for (u32 row = 0; row < ROWS; row += 4)
    for (u32 column = 0; column < columns; column += 8) {
      const T* const line = a + row * depth;
      Vector sum[4], x;
      for (u32 i = 0; i < 4; i++) memcpy(&sum[i], c + (row + i) * columns + column, sizeof x);
      for (u32 k = 0; k < depth; k++) {
        memcpy(&x, b + k * columns + column, sizeof x);
        sum[0] += x * line[k];
        sum[1] += x * line[depth + k];
        sum[2] += x * line[2 * depth + k];
        sum[3] += x * line[3 * depth + k];
      }
      for (u32 i = 0; i < 4; i++) memcpy(c + (row + i) * columns + column, &sum[i], sizeof x);
    }
}
__attribute__((target_clones("avx2", "default"))) void multiply_floats(float* c, const float* a, const float* b, u32 columns,
                                                                       u32 depth) {
  multiply<Floats>(c, a, b, columns, depth);
}
__attribute__((target_clones("avx2", "default"))) void multiply_words(u32* c, const u32* a, const u32* b, u32 columns,
                                                                      u32 depth) {
  multiply<Words>(c, a, b, columns, depth);
}

// 32 bytes along k as numbers, `step` places apart.
void widen(float* out, const u8* row, int kind, u32 step) {
  if (kind == 2) {
    for (u32 k = 0; k < 8; k++) {
      u32 bits;
      memcpy(&bits, row + 4 * k, 4);
      bits &= 0xffffe000;
      memcpy(out + k * step, &bits, 4);
    }
    return;
  }
  for (u32 k = 0; k < 16; k++) {
    u16 half;
    memcpy(&half, row + 2 * k, 2);
    u32 bits = static_cast<u32>(half) << 16;
    if (kind ==
        0) {  // exponent and mantissa moved into place, then rebased by an exact product, which also makes subnormals normal
      bits = (half & 0x7fffu) << 13;
      float value;
      memcpy(&value, &bits, 4);
      value *= 0x1p112f;
      const u32 special = bits >= 0x0f800000 ? 0x7f800000 : 0;
      memcpy(&bits, &value, 4);
      bits |= special | static_cast<u32>(half & 0x8000u) << 16;
    }
    memcpy(out + k * step, &bits, 4);
  }
}
void widen(u32* out, const u8* row, int kind, u32 step) {
  for (u32 k = 0; k < 32; k++) out[k * step] = kind == 3 ? static_cast<u32>(static_cast<i32>(static_cast<i8>(row[k]))) : row[k];
}

// An operand of `extent` rows of A or columns of B in shared memory.
struct Operand {
  u32 address, leading, stride, span;
  bool mn;
};

Operand decode(u64 descriptor, bool mn, u32 extent, const char* what, const Product& product, const Fiber& fiber) {
  static constexpr u32 spans[] = {0, 128, 64, 32};
  const auto field = [&](u32 bit) { return static_cast<u32>(descriptor >> bit & 0x3fff) << 4; };
  const Operand operand{field(0), field(16), field(32), spans[descriptor >> 62], mn};
  if ((descriptor >> 49 & 7) != 0)
    fail_for(fiber, TSC_EMU_PROTOCOL, product.at,
             "operand %s has a base offset: let the tile begin at a multiple of 8 times the swizzle", what);
  if (operand.span == 0) return operand;
  const u32 within = operand.address % operand.span, needed = mn ? 2 * extent : ROW_BYTES;
  if (operand.address % (8 * operand.span) != within)
    fail_for(fiber, TSC_EMU_PROTOCOL, product.at, "operand %s begins in the middle of its %u-byte swizzle's pattern", what,
             operand.span);
  if (within != 0 && within + needed > operand.span)
    fail_for(fiber, TSC_EMU_PROTOCOL, product.at,
             "operand %s begins %u bytes into its %u-byte swizzle and does not fit in what is left", what, within,
             operand.span);
  return operand;
}

// Window address of 16 bytes: k-major, those at chunk `part` (0, 1) of row x; mn-major, rows x .. x + 7 at k = `part`.
u32 chunk_address(const Operand& o, u32 x, u32 part) {
  u32 address;
  if (!o.mn && o.span == 0)
    address = o.address + x / 8 * o.stride + x % 8 * 16 + part * o.leading;
  else if (!o.mn)
    address = o.address + x / 8 * o.stride + x % 8 * o.span + part * 16;
  else if (o.span == 0)
    address = o.address + x / 8 * o.stride + part / 8 * o.leading + part % 8 * 16;
  else
    address = o.address + x / (o.span / 2) * o.leading + x % (o.span / 2) * 2 + part / 8 * o.stride + part % 8 * o.span;
  return swizzle_bytes(address & 0x3ffff, o.span);
}

// Call part(x, part, 16 bytes' window address) for all of an operand.
template <class Part>
void for_each_chunk(const Operand& operand, u32 extent, Part part) {
  const u32 rows = operand.mn ? 8 : 1, parts = operand.mn ? 16 : 2;
  for (u32 x = 0; x < extent; x += rows)
    for (u32 i = 0; i < parts; i++) part(x, i, chunk_address(operand, x, i));
}

// In the block of `fiber`, which may not be the one that runs.
const u8* chunk_at(const Fiber& fiber, u32 address, const char* what, u32 at) {
  const u32 size = cluster->launch->shared_bytes, offset = address - shared_window_base;
  if (address < shared_window_base || offset + 16 > size)
    fail_for(fiber, TSC_EMU_OUT_OF_BOUNDS, at, "operand %s reaches byte %lld of shared memory, but the block has %u bytes",
             what, static_cast<long long>(address) - shared_window_base + 16, size);
  return fiber.block->shared + offset;
}

// The operand as `extent` rows of 32 bytes.
void fetch(u8* rows, const Operand& operand, u32 extent, const char* what, const Product& product, const Fiber& fiber) {
  for_each_chunk(operand, extent, [&](u32 x, u32 part, u32 address) {
    const u8* const chunk = chunk_at(fiber, address, what, product.at);
    if (operand.mn)
      for (u32 i = 0; i < 8; i++) memcpy(rows + (x + i) * ROW_BYTES + 2 * part, chunk + 2 * i, 2);
    else
      memcpy(rows + x * ROW_BYTES + 16 * part, chunk, 16);
  });
}

// Race mode: A's rows are read for the warp that holds them, B for all four.
void trace(const WarpGroup& group, const Operand& operand, u32 extent, bool is_a, const Product& product) {
  Race& race = *cluster->launch->race;
  for_each_chunk(operand, extent, [&](u32 x, u32, u32 address) {
    chunk_at(group.lanes[0], address, is_a ? "A" : "B", product.at);
    for (u32 warp = is_a ? x / 16 : 0; warp < (is_a ? x / 16 + 1 : 4); warp++)
      race.shared(*group.lanes->block, address - shared_window_base, 16,
                  Race::by_actor(group.lanes[32 * warp], group.actor, product.group, TSC_EMU_READ, product.at));
  });
}

// What wgmma reads must have landed when it is issued.
void check_landed(const WarpGroup& group, const Operand& operand, u32 extent, const char* what, const Product& product) {
  for_each_chunk(operand, extent, [&](u32, u32, u32 address) {
    const u8* const chunk = chunk_at(group.lanes[0], address, what, product.at);
    for (const Load& load : hopper().loads)
      for (const Load::Target& target : load.targets)
        if (target.to < chunk + 16 && chunk < target.to + target.bytes)
          fail(TSC_EMU_PROTOCOL, product.at,
               "operand %s is read at byte %u of shared memory, where the load of line %u has not landed: nobody has waited "
               "for it",
               what, address - shared_window_base, load.at);
  });
}

// Where lane `lane` holds its two numbers of register pair `pair`: row and column.
u32 row_of(u32 lane, u32 pair) { return lane / 32 * 16 + lane % 32 / 4 + pair % 2 * 8; }
u32 column_of(u32 lane, u32 pair) { return pair / 2 * 8 + lane % 4 * 2; }

template <class T>
void compute(const WarpGroup& group, const Product& product) {
  const u32 n = static_cast<u32>(product.n), depth = product.kind < 2 ? 16 : product.kind == 2 ? 8 : 32, pairs = n / 4;
  const Fiber& fiber = group.lanes[0];
  std::vector<u8> a_rows(ROWS * ROW_BYTES), b_rows(n * ROW_BYTES);
  if (product.a.empty())
    fetch(a_rows.data(), decode(product.a_descriptor, product.a_mn, ROWS, "A", product, fiber), ROWS, "A", product, fiber);
  else
    a_rows = product.a;
  fetch(b_rows.data(), decode(product.b_descriptor, product.b_mn, n, "B", product, fiber), n, "B", product, fiber);
  std::vector<T> a(ROWS * depth), b(n * depth), c(ROWS * n);
  for (u32 row = 0; row < ROWS; row++) widen(&a[row * depth], &a_rows[row * ROW_BYTES], product.kind, 1);
  for (u32 column = 0; column < n; column++) widen(&b[column], &b_rows[column * ROW_BYTES], product.kind, n);
  u32* const values = product.flight->values.data();
  const u32 registers = product.flight->registers;
  if (product.accumulate)
    for (u32 lane = 0; lane < 128; lane++)
      for (u32 pair = 0; pair < pairs; pair++)
        memcpy(&c[row_of(lane, pair) * n + column_of(lane, pair)], values + lane * registers + 2 * pair, 8);
  if constexpr (std::is_same_v<T, float>)
    multiply_floats(c.data(), a.data(), b.data(), n, depth);
  else
    multiply_words(c.data(), a.data(), b.data(), n, depth);
  for (u32 lane = 0; lane < 128; lane++)
    for (u32 pair = 0; pair < pairs; pair++)
      memcpy(values + lane * registers + 2 * pair, &c[row_of(lane, pair) * n + column_of(lane, pair)], 8);
  cluster->mma_instructions++;
}

void check_poison(const WarpGroup& group, const Flight& flight, u32 at) {
  for (u32 lane = 0; lane < 128; lane++)
    for (u32 i = 0; i < flight.registers; i++) {
      u32 word;
      memcpy(&word, static_cast<const u32*>(flight.d[lane]) + i, 4);
      if (word != POISON)
        fail_for(group.lanes[lane], TSC_EMU_PROTOCOL, at, "accumulator register %u of this wgmma was written before wgmma_wait",
                 i);
    }
}

// The product is done: its accumulators are the lanes' again when no other is under way on them.
void land(WarpGroup& group, const Product& product) {
  if (product.kind < 3)
    compute<float>(group, product);
  else
    compute<u32>(group, product);
  Flight& flight = *product.flight;
  if (--flight.products != 0) return;
  if (hopper().lands_later()) check_poison(group, flight, product.at);
  for (u32 lane = 0; lane < 128; lane++) memcpy(flight.d[lane], &flight.values[lane * flight.registers], 4 * flight.registers);
}

u32 least_committed(const WarpGroup& group) {
  u32 least = group.committed[0];
  for (u32 committed : group.committed) least = std::min(least, committed);
  return least;
}

void wake_group(WarpGroup& group) {
  const u32 over = group.products.empty() ? ~0u : group.products.front().group - 1;
  group.waiting.erase(std::remove_if(group.waiting.begin(), group.waiting.end(),
                                     [&](const std::pair<Fiber*, u32>& waiter) {
                                       if (waiter.second > over) return false;
                                       wake(*waiter.first);
                                       return true;
                                     }),
                      group.waiting.end());
}

WarpGroup& own_group(const char* what, u32 at) {
  const u32 per_block = cluster->launch->threads / 128, index = self->thread / 128;
  if (index >= per_block)
    fail(TSC_EMU_PROTOCOL, at, "%s by a warp that is in no whole warp group: the block has %u threads", what,
         cluster->launch->threads);
  WarpGroup& group = hopper().groups[self->block->rank * per_block + index];
  if (cluster->launch->race && group.actor == 0) group.actor = cluster->launch->race->new_actor();
  return group;
}

// All 128 threads bring what they multiply. True in the one that comes last, while the others still stand.
bool gather(WarpGroup& group, const Multiplicands& mine, u32 at) {
  if (group.arrived == 0)
    group.arrived_at = at;
  else if (group.arrived_at != at)
    fail(TSC_EMU_DIVERGED, at, "at wgmma while %u threads of its warp group stand at wgmma, line %u", group.arrived,
         group.arrived_at);
  group.slot[self->thread % 128] = &mine;
  if (++group.arrived < 128) {
    wait("wgmma", at);
    return false;
  }
  group.arrived = 0;
  cluster->collectives++;
  for (u32 lane = 0; lane < 128; lane++)
    if (&group.lanes[lane] != self) wake(group.lanes[lane]);
  return true;
}

void check_agreement(const WarpGroup& group, u32 at) {
  const Multiplicands& first = *group.slot[0];
  for (u32 lane = 0; lane < 128; lane++) {
    const Multiplicands& m = *group.slot[lane];
    if (m.a_descriptor != first.a_descriptor || m.b_descriptor != first.b_descriptor || m.accumulate != first.accumulate)
      fail_for(group.lanes[lane], TSC_EMU_PROTOCOL, at,
               "the descriptors of wgmma, or whether it accumulates, differ within the warp group");
    if (group.committed[lane] != group.committed[0])
      fail_for(group.lanes[lane], TSC_EMU_PROTOCOL, at,
               "this thread has committed %u groups of wgmma, the first of its warp group %u", group.committed[lane],
               group.committed[0]);
    if (group.fences[lane] == 0)
      fail_for(group.lanes[lane], TSC_EMU_PROTOCOL, at, "no wgmma_fence comes before the first wgmma");
  }
}

// The accumulators take off: their values are kept until the product lands.
Flight& take_off(WarpGroup& group, u32 registers, bool accumulate, u32 at) {
  Flight& flight = group.flights[group.slot[0]->d];
  const bool later = hopper().lands_later(), is_known = flight.registers == registers && flight.d[127] == group.slot[127]->d;
  if (flight.products != 0) {
    if (!is_known) fail(TSC_EMU_PROTOCOL, at, "wgmma of another N on accumulators that are under way");
    check_poison(group, flight, at);
  } else {
    const std::vector<u32> before = std::move(flight.values);
    flight.registers = registers;
    flight.values.assign(size_t{128} * registers, 0);
    for (u32 lane = 0; lane < 128; lane++) {
      u32* const values = &flight.values[lane * registers];
      memcpy(values, group.slot[lane]->d, 4 * registers);
      if (later && accumulate && is_known && flight.fences[lane] == group.fences[lane] &&
          memcmp(values, &before[lane * registers], 4 * registers) != 0)
        fail_for(group.lanes[lane], TSC_EMU_PROTOCOL, at,
                 "the accumulators were written since the wgmma before, but no wgmma_fence comes between");
      flight.d[lane] = group.slot[lane]->d;
      flight.fences[lane] = group.fences[lane];
      if (later)
        for (u32 i = 0; i < registers; i++) memcpy(static_cast<u32*>(flight.d[lane]) + i, &POISON, 4);
    }
  }
  flight.products++;
  return flight;
}

// Registers of A as rows of 32 bytes.
std::vector<u8> registers_of_a(const WarpGroup& group) {
  std::vector<u8> rows(ROWS * ROW_BYTES);
  for (u32 lane = 0; lane < 128; lane++)
    for (u32 i = 0; i < 4; i++)
      memcpy(&rows[row_of(lane, i) * ROW_BYTES + i / 2 * 16 + lane % 4 * 4], group.slot[lane]->a + i, 4);
  return rows;
}

}  // namespace

bool Hopper::land_product() {
  const u32 start = cluster->launch->stress() && !groups.empty() ? random_bits() % static_cast<u32>(groups.size()) : 0;
  for (u32 i = 0; i < groups.size(); i++) {
    WarpGroup& group = groups[(start + i) % groups.size()];
    if (group.products.empty() || group.products.front().group > least_committed(group)) continue;
    const Product product = std::move(group.products.front());
    group.products.pop_front();
    if (!group.lanes[0].done) land(group, product);
    wake_group(group);
    return true;
  }
  return false;
}

void wgmma_fence(u32 at) {
  tick();
  own_group("wgmma_fence", at).fences[self->thread % 128]++;
}

void wgmma_commit(u32 at) {
  tick();
  own_group("wgmma_commit", at).committed[self->thread % 128]++;
}

void wgmma_wait(u32 pending, u32 at) {
  tick();
  WarpGroup& group = own_group("wgmma_wait", at);
  const u32 committed = group.committed[self->thread % 128];
  if (committed <= pending) return;
  const u32 last = committed - pending;
  if (!group.products.empty() && group.products.front().group <= last) {
    group.waiting.emplace_back(self, last);
    wait("wgmma_wait", at);
  }
  if (cluster->launch->race) {
    Join join;
    join.add_actor(group.actor, last);
    join.meet(*self);
  }
}

void wgmma(void* d, const u32* a_registers, u64 a, u64 b, bool accumulate, int n, int kind, bool a_mn, bool b_mn, u32 at) {
  tick();
  WarpGroup& group = own_group("wgmma", at);
  const Multiplicands mine{d, a_registers, a, b, accumulate, n, kind, a_mn, b_mn};
  if (!gather(group, mine, at)) return;
  check_agreement(group, at);
  Product product{at, group.committed[0] + 1, n, kind, accumulate, {}, a, b, a_mn, b_mn, nullptr};
  if (a_registers) product.a = registers_of_a(group);
  const u32 columns = static_cast<u32>(n);
  const Operand b_operand = decode(b, b_mn, columns, "B", product, *self);
  if (a_registers == nullptr) {
    const Operand a_operand = decode(a, a_mn, ROWS, "A", product, *self);
    if (cluster->launch->race) trace(group, a_operand, ROWS, true, product);
    if (!hopper().loads.empty()) check_landed(group, a_operand, ROWS, "A", product);
  }
  if (cluster->launch->race) trace(group, b_operand, columns, false, product);
  if (!hopper().loads.empty()) check_landed(group, b_operand, columns, "B", product);
  if (cluster->launch->options.count) cluster->tally.bulk(SHARED_LOAD, (columns + (a_registers ? 0 : ROWS)) * ROW_BYTES);
  product.flight = &take_off(group, columns / 2, accumulate, at);
  if (hopper().lands_later())
    group.products.push_back(std::move(product));
  else
    land(group, product);
}

void set_registers(u32, bool increase, u32 at) {
  own_group(increase ? "registers_increase" : "registers_decrease", at);
  collective(increase ? "registers_increase" : "registers_decrease", nullptr, at);
}

}  // namespace tsc::emu
