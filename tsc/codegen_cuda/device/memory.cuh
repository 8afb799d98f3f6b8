// Guarded global and shared access. T is any trivially copyable type of 1, 2, 4, 8 or 16 bytes, aligned to its size.
#pragma once
#include "number.cuh"

namespace tsc {

// ld.global (PTX ISA 9.7.9.8). `load_global` sees earlier stores of this kernel; `load_constant` (ld.global.nc, 9.7.9.9) is for
// memory that nothing writes while the kernel runs.
template <class T>
TSC_DEV T load_global(const T* source TSC_AT) {
#ifdef TSC_EMU
  T value;
  emu::global_load(&value, source, sizeof(T), at);
  return value;
#else
  return *source;
#endif
}
template <class T>
TSC_DEV T load_constant(const T* source TSC_AT) {
  T value;
#ifdef TSC_EMU
  emu::global_load_constant(&value, source, sizeof(T), at);
#else
  if constexpr (sizeof(T) == 16) {
    u32* word = reinterpret_cast<u32*>(&value);
    asm volatile("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "l"(source));
  } else if constexpr (sizeof(T) == 8) {
    u32* word = reinterpret_cast<u32*>(&value);
    asm volatile("ld.global.nc.v2.b32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(source));
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(reinterpret_cast<u32&>(value)) : "l"(source));
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(reinterpret_cast<u16&>(value)) : "l"(source));
  } else {
    value = *source;
  }
#endif
  return value;
}

// Where `predicate` is false nothing is read and the value is all zero bits.
template <class T>
TSC_DEV T load_global_or_zero(const T* source, bool predicate TSC_AT) {
  T value{};
  if (predicate) value = load_global(source TSC_PASS);
#ifdef TSC_EMU
  if (!predicate) emu::stand_by(false, false, at);
#endif
  return value;
}
template <class T>
TSC_DEV T load_constant_or_zero(const T* source, bool predicate TSC_AT) {
  T value{};
  if (predicate) value = load_constant(source TSC_PASS);
#ifdef TSC_EMU
  if (!predicate) emu::stand_by(false, false, at);
#endif
  return value;
}

// st.global (PTX ISA 9.7.9.11).
template <class T>
TSC_DEV void store_global(T* target, T value TSC_AT) {
#ifdef TSC_EMU
  emu::global_store(target, &value, sizeof(T), at);
#else
  *target = value;
#endif
}
template <class T>
TSC_DEV void store_global_if(T* target, T value, bool predicate TSC_AT) {
  if (predicate) store_global(target, value TSC_PASS);
#ifdef TSC_EMU
  if (!predicate) emu::stand_by(false, true, at);
#endif
}

// ld.shared (PTX ISA 9.7.9.8) from window address `source`.
template <class T>
TSC_DEV T load_shared(u32 source TSC_AT) {
  T value;
#ifdef TSC_EMU
  emu::shared_load(&value, source, sizeof(T), at);
#else
  if constexpr (sizeof(T) == 16) {
    u32* word = reinterpret_cast<u32*>(&value);
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(source)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    u32* word = reinterpret_cast<u32*>(&value);
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "r"(source) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(reinterpret_cast<u32&>(value)) : "r"(source) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(reinterpret_cast<u16&>(value)) : "r"(source) : "memory");
  } else {
    u32 byte;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(source) : "memory");
    reinterpret_cast<u8&>(value) = static_cast<u8>(byte);
  }
#endif
  return value;
}

// The word at OFFSET bytes from window address `source`. The offset is the instruction's own: a compiler does not add it
// before.
template <int OFFSET, class T>
TSC_DEV T load_shared_at(u32 source TSC_AT) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 2, "words and halves");
#ifdef TSC_EMU
  return load_shared<T>(source + OFFSET TSC_PASS);
#else
  T value;
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.shared.b32 %0, [%1 + %2];"
                 : "=r"(reinterpret_cast<u32&>(value))
                 : "r"(source), "n"(OFFSET)
                 : "memory");
  } else {
    asm volatile("ld.shared.b16 %0, [%1 + %2];"
                 : "=h"(reinterpret_cast<u16&>(value))
                 : "r"(source), "n"(OFFSET)
                 : "memory");
  }
  return value;
#endif
}

// What one access moves: COUNT neighbours of 4, 8 or 16 bytes together, from an address that is a multiple of that.
template <int BYTES>
struct Row;
template <>
struct Row<4> {
  using Word = u32;
};
template <>
struct Row<8> {
  using Word = b64;
};
template <>
struct Row<16> {
  using Word = b128;
};
template <int COUNT, class T>
using RowWord = typename Row<COUNT * sizeof(T)>::Word;

template <int COUNT, class T, class Word>
TSC_DEV void split_row(T* target, const Word& row) {
  TSC_UNROLL for (int k = 0; k < COUNT; k++)
      memcpy(target + k, reinterpret_cast<const u8*>(&row) + k * sizeof(T), sizeof(T));
}
template <int COUNT, class T>
TSC_DEV RowWord<COUNT, T> join_row(const T (&row)[COUNT]) {
  RowWord<COUNT, T> word;
  TSC_UNROLL for (int k = 0; k < COUNT; k++) memcpy(reinterpret_cast<u8*>(&word) + k * sizeof(T), row + k, sizeof(T));
  return word;
}

// ld.shared, ld.global and ld.global.nc, st.shared and st.global of a row (.v2 and .v4, PTX ISA 9.7.9.8 to 9.7.9.11).
template <int COUNT, class T>
TSC_DEV void load_shared_row(T* target, u32 source TSC_AT) {
  split_row<COUNT>(target, load_shared<RowWord<COUNT, T>>(source TSC_PASS));
}
template <int COUNT, class T>
TSC_DEV void load_global_row(T* target, const T* source TSC_AT) {
  split_row<COUNT>(target, load_global(reinterpret_cast<const RowWord<COUNT, T>*>(source) TSC_PASS));
}
template <int COUNT, class T>
TSC_DEV void load_constant_row(T* target, const T* source TSC_AT) {
  split_row<COUNT>(target, load_constant(reinterpret_cast<const RowWord<COUNT, T>*>(source) TSC_PASS));
}
// st.shared (PTX ISA 9.7.9.11) to window address `target`.
template <class T>
TSC_DEV void store_shared(u32 target, T value TSC_AT) {
#ifdef TSC_EMU
  emu::shared_store(target, &value, sizeof(T), at);
#else
  if constexpr (sizeof(T) == 16) {
    const u32* word = reinterpret_cast<const u32*>(&value);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target), "r"(word[0]), "r"(word[1]), "r"(word[2]),
                 "r"(word[3])
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    const u32* word = reinterpret_cast<const u32*>(&value);
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(target), "r"(word[0]), "r"(word[1]) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(target), "r"(reinterpret_cast<const u32&>(value)) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(target), "h"(reinterpret_cast<const u16&>(value)) : "memory");
  } else {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(target), "r"(static_cast<u32>(reinterpret_cast<const u8&>(value))) : "memory");
  }
#endif
}

// Where `predicate` is false nothing is read and the value is all zero bits.
template <class T>
TSC_DEV T load_shared_or_zero(u32 source, bool predicate TSC_AT) {
  T value{};
  if (predicate) value = load_shared<T>(source TSC_PASS);
#ifdef TSC_EMU
  if (!predicate) emu::stand_by(true, false, at);
#endif
  return value;
}
template <class T>
TSC_DEV void store_shared_if(u32 target, T value, bool predicate TSC_AT) {
  if (predicate) store_shared(target, value TSC_PASS);
#ifdef TSC_EMU
  if (!predicate) emu::stand_by(true, true, at);
#endif
}

template <int COUNT, class T>
TSC_DEV void store_shared_row(u32 target, const T (&row)[COUNT] TSC_AT) {
  store_shared(target, join_row(row) TSC_PASS);
}
template <int COUNT, class T>
TSC_DEV void store_global_row(T* target, const T (&row)[COUNT] TSC_AT) {
  store_global(reinterpret_cast<RowWord<COUNT, T>*>(target), join_row(row) TSC_PASS);
}

// The 16-byte copy loop's unit: global to registers to shared, zero bytes where `predicate` is false.
TSC_DEV void copy16_or_zero(u32 target, const void* source, bool predicate TSC_AT) {
  store_shared(target, load_constant_or_zero(static_cast<const b128*>(source), predicate TSC_PASS) TSC_PASS);
}

}  // namespace tsc
