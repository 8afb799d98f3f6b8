// The least a kernel can do and be seen to have done: out[0] = value. One thread stores.
#include "tsc_device.cuh"

TSC_KERNEL(set_word, 32, 1, tsc::u32* out, tsc::u32 value) {
  if (tsc::thread_index().x == 0) tsc::store_global(out, value);
}
