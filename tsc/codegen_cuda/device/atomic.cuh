// Atomics on global and shared memory (atom, PTX ISA 9.7.13.6): relaxed, device scope (block scope for shared); each returns
// the value it found.
#pragma once
#include "number.cuh"

namespace tsc {

// T is float, i32, u32 or u64 for add; i32 or u32 for max and exchange and compare-and-swap. Float adds round to nearest even,
// in no fixed order.
template <class T>
TSC_DEV T atomic_add(T* target, T value TSC_AT) {
#ifdef TSC_EMU
  T old;
  emu::atomic_global(&old, target, &value, nullptr, emu::ATOMIC_ADD, emu::atomic_type<T>(), at);
  return old;
#else
  return atomicAdd(target, value);
#endif
}
template <class T>
TSC_DEV T atomic_max(T* target, T value TSC_AT) {
#ifdef TSC_EMU
  T old;
  emu::atomic_global(&old, target, &value, nullptr, emu::ATOMIC_MAX, emu::atomic_type<T>(), at);
  return old;
#else
  return atomicMax(target, value);
#endif
}
template <class T>
TSC_DEV T atomic_exchange(T* target, T value TSC_AT) {
#ifdef TSC_EMU
  T old;
  emu::atomic_global(&old, target, &value, nullptr, emu::ATOMIC_EXCHANGE, emu::atomic_type<T>(), at);
  return old;
#else
  return atomicExch(target, value);
#endif
}
// Stores `value` where the memory holds `expected`.
template <class T>
TSC_DEV T atomic_compare_exchange(T* target, T expected, T value TSC_AT) {
#ifdef TSC_EMU
  T old;
  emu::atomic_global(&old, target, &value, &expected, emu::ATOMIC_COMPARE_EXCHANGE, emu::atomic_type<T>(), at);
  return old;
#else
  return atomicCAS(target, expected, value);
#endif
}

// The maximum of floats without NaN, of which the memory holds one: as signed integers where `value` is not negative, as
// unsigned minima else. Returns nothing.
TSC_DEV void atomic_max(float* target, float value TSC_AT) {
#ifdef TSC_EMU
  float old;
  emu::atomic_global(&old, target, &value, nullptr, emu::ATOMIC_MAX, emu::atomic_type<float>(), at);
#else
  value += 0.0f;
  if (value >= 0.0f)
    atomicMax(reinterpret_cast<int*>(target), __float_as_int(value));
  else
    atomicMin(reinterpret_cast<unsigned*>(target), __float_as_uint(value));
#endif
}

// The same on shared window addresses.
TSC_DEV float atomic_add_shared(u32 target, float value TSC_AT) {
  float old;
#ifdef TSC_EMU
  emu::atomic_shared(&old, target, &value, emu::ATOMIC_ADD, emu::atomic_type<float>(), at);
#else
  asm volatile("atom.shared.add.f32 %0, [%1], %2;" : "=f"(old) : "r"(target), "f"(value) : "memory");
#endif
  return old;
}
TSC_DEV i32 atomic_add_shared(u32 target, i32 value TSC_AT) {
  i32 old;
#ifdef TSC_EMU
  emu::atomic_shared(&old, target, &value, emu::ATOMIC_ADD, emu::atomic_type<i32>(), at);
#else
  asm volatile("atom.shared.add.s32 %0, [%1], %2;" : "=r"(old) : "r"(target), "r"(value) : "memory");
#endif
  return old;
}
TSC_DEV i32 atomic_max_shared(u32 target, i32 value TSC_AT) {
  i32 old;
#ifdef TSC_EMU
  emu::atomic_shared(&old, target, &value, emu::ATOMIC_MAX, emu::atomic_type<i32>(), at);
#else
  asm volatile("atom.shared.max.s32 %0, [%1], %2;" : "=r"(old) : "r"(target), "r"(value) : "memory");
#endif
  return old;
}

}  // namespace tsc
