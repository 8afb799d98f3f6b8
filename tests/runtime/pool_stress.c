/* The thread pool under fire: several threads call tsc_run at once with changing thread counts, some of the jobs fail, and the
 * workers are ended and made again. Built plain and with ThreadSanitizer. */
#include RUNTIME
#include <stdio.h>
#include <string.h>

enum { CALLERS = 4, STEPS = 60, SIZE = 4096 };

typedef struct { int64_t rows[STEPS + 1][SIZE], expected[2][SIZE]; } memory;
static memory memories[CALLERS];

/* dst[i] = src[n-1-i] + i: each block reads what another block of the launch before wrote; status 7 at block sizes[1] */
static int32_t step(const tsc_args *args, int64_t begin, int64_t end, void *scratch) {
    const int64_t *src = args->buffers[0];
    int64_t *dst = args->buffers[1], n = args->sizes[0], bad = args->sizes[1];
    *(int64_t *)scratch = begin;
    for (int64_t i = begin; i < end; ++i) dst[i] = src[n - 1 - i] + i;
    return begin <= bad && bad < end ? 7 : 0;
}

static int job(memory *m, int threads, uint32_t seed) {
    tsc_launch launches[STEPS];
    void *buffers[STEPS][2], *scratch[8];
    int64_t sizes[STEPS][2], words[8][8];
    uint32_t random = seed * 2654435761u + 1;
    int64_t n = 1 + (random >> 8) % (SIZE - 1);
    int64_t fail = (random >> 5) % 4 ? -1 : (int64_t)((random >> 3) % STEPS);
    for (int w = 0; w < 8; ++w) scratch[w] = words[w];
    for (int64_t i = 0; i < n; ++i) m->rows[0][i] = m->expected[0][i] = i;
    for (int k = 0; k < STEPS; ++k) {
        int64_t blocks = k % 7 == 3 ? 1 : n; /* a launch of one block does element 0 only; the rest is done here */
        buffers[k][0] = m->rows[k], buffers[k][1] = m->rows[k + 1];
        sizes[k][0] = n, sizes[k][1] = k == fail ? (blocks - 1) / 2 : -1;
        launches[k] = (tsc_launch){step, {buffers[k], sizes[k]}, blocks};
        memset(m->rows[k + 1], 0, sizeof m->rows[k + 1]);
        for (int64_t i = 0; i < n; ++i) m->expected[(k + 1) & 1][i] = i < blocks ? m->expected[k & 1][n - 1 - i] + i : 0;
    }
    int64_t status = tsc_run(launches, STEPS, threads, scratch);
    if (fail >= 0) return status != (fail << 32 | 7);
    return status != 0 || memcmp(m->expected[STEPS & 1], m->rows[STEPS], (size_t)n * 8) != 0;
}

static void *caller(void *argument) {
    int me = (int)(intptr_t)argument;
    for (int i = 0; i < 100; ++i)
        if (job(&memories[me], 1 + (i * 7 + me) % 5, (uint32_t)(i * 31 + me))) return (void *)1;
    return NULL;
}

/* Workers that are never given a core: the pool believes in three, and there are none. Nobody may wait for them. */
static int without_workers(void) {
    int wrong = 0;
    pool.process = (int32_t)getpid();
    pool.workers = 3;
    for (uint32_t i = 0; i < 20; ++i) wrong |= job(&memories[0], 4, i);
    pool.workers = 0;
    return wrong;
}

int main(void) {
    pthread_t threads[CALLERS];
    alarm(100);
    if (without_workers()) return 3;
    void *wrong = NULL, *result;
    for (intptr_t i = 0; i < CALLERS; ++i) pthread_create(&threads[i], NULL, caller, (void *)i);
    for (int i = 0; i < CALLERS; ++i) {
        pthread_join(threads[i], &result);
        if (result) wrong = result;
    }
    for (uint32_t i = 0; i < 10; ++i)
        if (job(&memories[0], 3, i) || tsc_stop()) return 2;
    puts(wrong ? "wrong" : "right");
    return wrong != NULL;
}
