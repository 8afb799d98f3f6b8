// Clusters of blocks (sm_90): identity, their barrier, and each other's shared memory. cluster_rank and cluster_size are in
// platform.cuh.
#pragma once
#include "platform.cuh"

namespace tsc {

// %clusterid, %nclusterid, %cluster_ctaid (PTX ISA 10): this cluster in the grid, clusters of the grid, this block in its
// cluster.
TSC_DEV Index3 cluster_index() {
#ifdef TSC_EMU
  return emu::cluster_index();
#else
  Index3 index;
  asm("mov.u32 %0, %%clusterid.x;\nmov.u32 %1, %%clusterid.y;\nmov.u32 %2, %%clusterid.z;"
      : "=r"(index.x), "=r"(index.y), "=r"(index.z));
  return index;
#endif
}
TSC_DEV Index3 cluster_grid() {
#ifdef TSC_EMU
  return emu::cluster_grid();
#else
  Index3 size;
  asm("mov.u32 %0, %%nclusterid.x;\nmov.u32 %1, %%nclusterid.y;\nmov.u32 %2, %%nclusterid.z;"
      : "=r"(size.x), "=r"(size.y), "=r"(size.z));
  return size;
#endif
}
TSC_DEV Index3 block_in_cluster() {
#ifdef TSC_EMU
  return emu::block_in_cluster();
#else
  Index3 index;
  asm("mov.u32 %0, %%cluster_ctaid.x;\nmov.u32 %1, %%cluster_ctaid.y;\nmov.u32 %2, %%cluster_ctaid.z;"
      : "=r"(index.x), "=r"(index.y), "=r"(index.z));
  return index;
#endif
}

// The barrier of all threads of the cluster, in two halves (barrier.cluster.arrive.release,
// barrier.cluster.wait.acquire; 9.7.13.3): each thread arrives, then waits; what was written before an arrival is visible after
// the wait. No block may leave while another touches its shared memory: end such kernels with cluster_sync.
TSC_DEV void cluster_arrive(TSC_AT0) {
#ifdef TSC_EMU
  emu::cluster_arrive(at);
#else
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
TSC_DEV void cluster_wait(TSC_AT0) {
#ifdef TSC_EMU
  emu::cluster_wait(at);
#else
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
TSC_DEV void cluster_sync(TSC_AT0) {
  cluster_arrive(TSC_PASS0);
  cluster_wait(TSC_PASS0);
}

// Window address, valid all over the cluster, of the place that is `address` in block `rank` (mapa.shared::cluster, 9.7.9.24).
TSC_DEV u32 map_shared(u32 address, u32 rank TSC_AT) {
#ifdef TSC_EMU
  return emu::map_shared(address, rank, at);
#else
  u32 mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
#endif
}

// ld.shared::cluster and st.shared::cluster at an address from map_shared; T of 4, 8 or 16 bytes.
template <class T>
TSC_DEV T load_cluster(u32 source TSC_AT) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "distributed shared memory is read by 4, 8 or 16 bytes");
  T value;
#ifdef TSC_EMU
  emu::check_mapped(source, at);
  emu::shared_load(&value, source, sizeof(T), at);
#else
  u32* word = reinterpret_cast<u32*>(&value);
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(source)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.shared::cluster.v2.b32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "r"(source) : "memory");
  } else {
    asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(word[0]) : "r"(source) : "memory");
  }
#endif
  return value;
}
template <class T>
TSC_DEV void store_cluster(u32 target, T value TSC_AT) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16,
                "distributed shared memory is written by 4, 8 or 16 bytes");
#ifdef TSC_EMU
  emu::check_mapped(target, at);
  emu::shared_store(target, &value, sizeof(T), at);
#else
  const u32* word = reinterpret_cast<const u32*>(&value);
  if constexpr (sizeof(T) == 16) {
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};" ::"r"(target), "r"(word[0]), "r"(word[1]) : "memory");
  } else {
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(target), "r"(word[0]) : "memory");
  }
#endif
}

}  // namespace tsc
