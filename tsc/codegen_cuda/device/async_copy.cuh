// cp.async (sm_80): copies from global to shared memory that run beside the thread (PTX ISA 9.7.9.25.3).
#pragma once
#include "platform.cuh"

namespace tsc {

// Where element `offset` of an array at `base` would be, also outside of the array: an address to form, not to read.
template <class T>
TSC_DEV const void* place_of(const T* base, u64 offset) {
  return reinterpret_cast<const void*>(reinterpret_cast<u64>(base) + offset * sizeof(T));
}

// Copy BYTES (16, 8 or 4, both addresses multiples of it) from global to shared; where `predicate` is false, write zeros and
// read nothing (`source` may be outside of all memory then). The bytes may be touched only after this thread has waited for
// their group, and by other threads only after a barrier that follows that wait. 16 bytes bypass L1 (.cg), 8 and 4 do not.
template <int BYTES = 16>
TSC_DEV void cp_async(u32 target, const void* source, bool predicate = true TSC_AT) {
  static_assert(BYTES == 16 || BYTES == 8 || BYTES == 4, "cp.async moves 16, 8 or 4 bytes");
#ifdef TSC_EMU
  emu::cp_async(target, source, BYTES, predicate, at);
#else
  const int bytes = predicate ? BYTES : 0;
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(BYTES), "r"(bytes) : "memory");
  }
#endif
}

// Close this thread's open group of copies (cp.async.commit_group, 9.7.9.25.3.2); an empty group is a group.
TSC_DEV void cp_async_commit(TSC_AT0) {
#ifdef TSC_EMU
  emu::cp_async_commit(at);
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most PENDING of this thread's newest groups are still under way (cp.async.wait_group, 9.7.9.25.3.3).
template <int PENDING>
TSC_DEV void cp_async_wait(TSC_AT0) {
#ifdef TSC_EMU
  emu::cp_async_wait(PENDING, at);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Wait for all of this thread's copies, committed or not (cp.async.wait_all).
TSC_DEV void cp_async_wait_all(TSC_AT0) {
#ifdef TSC_EMU
  emu::cp_async_wait(-1, at);
#else
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace tsc
