/* What one core can do at most: products with sums in registers alone, and reading memory that no cache holds. */
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define CHAINS 12 /* more than latency times throughput of any core's FMA; with their factors they fit into 16 registers */
typedef float vec __attribute__((vector_size(VECTOR_BYTES)));

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* GFLOP/s in fp32. */
double peak_gflops(void) {
    double best = 0;
    for (int round = 0; round < 30; ++round) {
        vec sum[CHAINS], factor, more;
        for (int lane = 0; lane < (int)(sizeof(vec) / sizeof(float)); ++lane) factor[lane] = 0.5f, more[lane] = 1.0f;
        for (int k = 0; k < CHAINS; ++k) sum[k] = more * (float)k;
        const long steps = 2000000;
        const double begin = now();
        for (long i = 0; i < steps; ++i) {
#pragma GCC unroll 12
            for (int k = 0; k < CHAINS; ++k) sum[k] = sum[k] * factor + more;
            __asm__ volatile("" ::: "memory"); /* no step may be left out */
        }
        const double rate = 2.0 * CHAINS * (sizeof(vec) / sizeof(float)) * steps / (now() - begin) / 1e9;
        vec all = sum[0];
        for (int k = 1; k < CHAINS; ++k) all += sum[k];
        if (all[0] != 0 && rate > best) best = rate;
    }
    return best;
}

/* GB/s of reading, from 2 MB pages as weights lie on them; 0 where there is no memory for it. */
double peak_gbytes(void) {
    const size_t size = (size_t)512 << 20;
    float *data = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return 0;
    madvise(data, size, MADV_HUGEPAGE);
    for (size_t i = 0; i < size / sizeof(float); i += 1024) data[i] = 1.0f;
    double best = 0;
    for (int round = 0; round < 8; ++round) {
        vec sum[8] = {{0}};
        const vec *at = (const vec *)data, *end = at + size / sizeof(vec);
        const double begin = now();
        for (; at < end; at += 8)
#pragma GCC unroll 8
            for (int k = 0; k < 8; ++k) sum[k] += at[k];
        const double rate = size / (now() - begin) / 1e9;
        for (int k = 1; k < 8; ++k) sum[0] += sum[k];
        if (sum[0][0] >= 0 && rate > best) best = rate;
    }
    munmap(data, size);
    return best;
}
