// What a kernel source sees of the emulator: one function behind each primitive of device/. All work is done in the .cpp files
// here, which are compiled once and linked to every module, so that a kernel compiles in a moment. `at` is always the kernel
// source's line.
#pragma once
#include <stddef.h>
#include <string.h>

#include "../device/types.cuh"

namespace tsc::emu {

// ---- kernels

// A kernel by name. The macro TSC_KERNEL makes one static object of these a kernel.
struct Kernel {
  const char* name;
  u32 max_threads;
  u32 argument_count;
  const u32* argument_bytes;
  void (*body)(const Kernel& self, void** arguments);
  void (*function)();
  Kernel* next;
};
void register_kernel(Kernel* kernel);

template <class T>
struct ArgumentType {
  using type = T;
};
template <class T>
struct ArgumentType<T&> {
  using type = T;
};

template <size_t... I>
struct Indices {};
template <size_t N, size_t... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <size_t... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

template <class... A>
struct Caller {
  static constexpr u32 bytes[sizeof...(A) + 1] = {static_cast<u32>(sizeof(A))..., 0};
  template <size_t... I>
  static void call(void (*function)(A...), void** arguments, Indices<I...>) {
    function(*static_cast<const typename ArgumentType<A>::type*>(arguments[I])...);
  }
  static void body(const Kernel& self, void** arguments) {
    call(reinterpret_cast<void (*)(A...)>(self.function), arguments, typename MakeIndices<sizeof...(A)>::type{});
  }
};

struct Registration {
  Kernel kernel;
  template <class... A>
  Registration(const char* name, u32 max_threads, void (*function)(A...))
      : kernel{name,
               max_threads,
               static_cast<u32>(sizeof...(A)),
               Caller<A...>::bytes,
               Caller<A...>::body,
               reinterpret_cast<void (*)()>(function),
               nullptr} {
    register_kernel(&kernel);
  }
};

// ---- ids

// Where the shared window begins: not 0, so that a forgotten base is an access out of bounds.
constexpr u32 shared_window_base = 1024;
const Index3& thread_index();
const Index3& block_size();
const Index3& block_index();
const Index3& grid_size();
u32 lane_index();
u32 cluster_rank();
u32 cluster_size();

// ---- numbers (number.cpp)

u16 f16_from_float(float value);
u16 bf16_from_float(float value);
u32 tf32_from_float(float value);
float float_from_f16(u16 bits);

// ---- memory

void global_load(void* value, const void* source, u32 bytes, u32 at);
void global_load_constant(void* value, const void* source, u32 bytes, u32 at);
void global_store(void* target, const void* value, u32 bytes, u32 at);
void shared_load(void* value, u32 source, u32 bytes, u32 at);
void shared_store(u32 target, const void* value, u32 bytes, u32 at);
// A guarded access whose predicate is false: counters then know which lanes go together.
void stand_by(bool shared, bool store, u32 at);

void cp_async(u32 target, const void* source, u32 bytes, bool predicate, u32 at);
void cp_async_commit(u32 at);
void cp_async_wait(int pending, u32 at);  // -1: all, the open group included

enum AtomicOperation { ATOMIC_ADD, ATOMIC_MAX, ATOMIC_EXCHANGE, ATOMIC_COMPARE_EXCHANGE };
enum AtomicType { ATOMIC_F32, ATOMIC_I32, ATOMIC_U32, ATOMIC_U64 };
template <class T>
constexpr AtomicType atomic_type();
template <>
constexpr AtomicType atomic_type<float>() {
  return ATOMIC_F32;
}
template <>
constexpr AtomicType atomic_type<i32>() {
  return ATOMIC_I32;
}
template <>
constexpr AtomicType atomic_type<u32>() {
  return ATOMIC_U32;
}
template <>
constexpr AtomicType atomic_type<u64>() {
  return ATOMIC_U64;
}
void atomic_global(void* old, void* target, const void* value, const void* expected, AtomicOperation operation, AtomicType type,
                   u32 at);
void atomic_shared(void* old, u32 target, const void* value, AtomicOperation operation, AtomicType type, u32 at);

// ---- barriers

void barrier_sync(u32 id, u32 threads, u32 at);  // threads 0: all of the block
void barrier_arrive(u32 id, u32 threads, u32 at);
void warp_sync(u32 mask, u32 at);
void fence(u32 at);

// ---- warp collectives

// all[l * bytes] becomes lane l's value. `what` names the primitive, so that lanes at different ones are found.
void warp_exchange(void* all, const void* value, u32 bytes, const char* what, u32 at);
void ldmatrix(u32* r, const u32* row_address, int tiles, int count, bool transposed, u32 at);
// c[mi][ni][4] += a[mi][4] b[ni][2]; kind as in MmaType.
void mma(void* c, const u32* a, const u32* b, int mi, int ni, int kind, u32 at);

}  // namespace tsc::emu
