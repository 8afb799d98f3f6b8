/* gather for cpu-avx2 */
#include "tsc_kernel.h"
#define TSC_LANES 8
#include "tsc_math.h"
#undef TSC_LANES

int32_t gather(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch) {
  const int64_t *restrict const ids = args->buffers[0];
  const float *restrict const table = args->buffers[1];
  const uint8_t *restrict const mask = args->buffers[2];
  float *restrict const y = args->buffers[3];
  const int64_t N = args->sizes[0];
  const int64_t V = args->sizes[1];
  const int64_t W = args->sizes[2];
  (void)scratch;
  for (int64_t block = block_begin; block < block_end; block += 1) {
    {
      const int64_t n = block;
      {
        const int64_t w_at0 = ({ int64_t tsc_i = ids[n]; if (tsc_i < 0) tsc_i += V; if ((uint64_t)tsc_i >= (uint64_t)V) return 1; tsc_i; });
        {
          const int64_t w_m = (8 * (W / 8));
          for (int64_t w_v = 0; w_v < w_m; w_v += 8) {
            *(tsc_float32x8u *)(y + ((n * W) + w_v)) = ((*(const tsc_float32x8u *)(table + ((w_at0 * W) + w_v))) * __builtin_convertvector((-(-tsc_int32_of_uint8x8(*(const tsc_boolx8u *)(mask + ((n * W) + w_v))))), tsc_float32x8));
          }
          if ((w_m < W)) {
            {
              const int64_t tsc_active = (W - w_m);
              tsc_store_float32x8(y + ((n * W) + w_m), tsc_active, ((tsc_load_float32x8(table + ((w_at0 * W) + w_m), tsc_active)) * __builtin_convertvector((-(-tsc_int32_of_uint8x8(tsc_load_boolx8(mask + ((n * W) + w_m), tsc_active)))), tsc_float32x8)));
            }
          }
        }
      }
    }
  }
  return 0;
}
