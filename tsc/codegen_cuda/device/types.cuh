// The plain types of the device layer.
#pragma once

namespace tsc {
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i32 = int;
using i64 = long long;

struct Index3 {
  u32 x, y, z;
};

// 16 bytes moved at once.
struct alignas(16) b128 {
  u32 word[4];
};
struct alignas(8) b64 {
  u32 word[2];
};
}  // namespace tsc
