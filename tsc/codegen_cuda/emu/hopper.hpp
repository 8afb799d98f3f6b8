// What a kernel source sees of the emulator behind device/hopper.cuh.
#pragma once
#include "abi.h"
#include "emu.hpp"

namespace tsc::emu {

// ---- mbarrier (hopper_sync.cpp)

void mbarrier_init(u32 barrier, u32 arrivals, u32 at);
void mbarrier_invalidate(u32 barrier, u32 at);
void mbarrier_arrive(u32 barrier, u32 bytes, u32 arrivals, u32 at);  // expects `bytes` more, then arrives 0 or 1 times
bool mbarrier_test(u32 barrier, u32 parity, u32 at);
void mbarrier_wait(u32 barrier, u32 parity, u32 at);
void fence_async_shared(u32 at);

// ---- clusters (hopper_sync.cpp)

Index3 cluster_index();
Index3 cluster_grid();
Index3 block_in_cluster();
void cluster_arrive(u32 at);
void cluster_wait(u32 at);
u32 map_shared(u32 address, u32 rank, u32 at);
void check_mapped(u32 address, u32 at);  // the block it names has not left

// ---- the copy engine (hopper_tma.cpp)

void tma_prefetch(const tsc_emu_tensor_map* map, u32 at);
void tma_load(u32 target, const tsc_emu_tensor_map* map, u32 barrier, const i32* coordinate, int rank,
              u32 blocks,  // of the cluster, a bit each; 0: this block
              u32 at);
void tma_store(const tsc_emu_tensor_map* map, u32 source, const i32* coordinate, int rank, u32 at);
void bulk_load(u32 target, const void* source, u32 bytes, u32 barrier, u32 at);
void bulk_store(void* target, u32 source, u32 bytes, u32 at);
void bulk_commit(u32 at);
void bulk_wait(u32 pending, bool read, u32 at);

// ---- wgmma (hopper_wgmma.cpp)

void wgmma_fence(u32 at);
void wgmma_commit(u32 at);
void wgmma_wait(u32 pending, u32 at);
// A from registers where `a_registers` is not null, else as `a` describes. kind as in MmaType.
void wgmma(void* d, const u32* a_registers, u64 a, u64 b, bool accumulate, int n, int kind, bool a_mn, bool b_mn, u32 at);
void set_registers(u32 count, bool increase, u32 at);

}  // namespace tsc::emu
