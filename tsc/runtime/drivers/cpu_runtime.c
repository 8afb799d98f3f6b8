/* The runtime that is compiled into every CPU module: one call runs a whole table of launches on a pool of threads.
 *
 * The caller walks the table. Each launch of more than one block is a phase: it is open to all workers, who take blocks while
 * there are some, and over when all its blocks are done. Nobody waits for a worker that does not come: where cores are busy the
 * caller does what is to do by itself, and waits for nothing but blocks that somebody has begun. Waiting spins for a bounded
 * while and then sleeps on a futex. The pool is made at the first call that can use it and kept; a second simultaneous call
 * finds it taken and runs on its own thread.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include "cpu_host.h"

#define MAX_WORKERS 256
#define SPIN_LIMIT 4000   /* about 0.1 ms: longer than most launches, shorter than a time slice */
#define CHUNKS_PER_SHARE 4 /* how finely a worker's share may be taken over by a worker that is done */

typedef struct { _Alignas(64) _Atomic uint64_t value; } counter; /* phase << 32 | next block */

typedef struct {
    pthread_t thread;
    int32_t id;
} worker;

#define CLOSED UINT32_MAX /* as the next block: there is none */

static struct {
    _Alignas(64) _Atomic int32_t owner; /* process id of the call that holds the pool, 0 when free */
    int32_t process;                    /* in which process the workers live */
    int32_t workers;                    /* how many were made; the caller itself is one more */
    /* the phase: set while all counters are closed, read by who has then taken a block, or tries to */
    const tsc_launch *_Atomic launch;
    void *const *_Atomic scratch;
    _Atomic int64_t index;
    _Atomic uint32_t blocks;
    _Atomic int32_t threads;
    _Atomic int32_t stop;
    _Alignas(64) _Atomic int64_t failed; /* 0, or the least (launch << 32 | code) */
    _Alignas(64) _Atomic uint32_t phase; /* the last that was opened */
    _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic uint32_t done; /* blocks of this phase */
    _Atomic uint32_t waiting;
    counter next[MAX_WORKERS + 1]; /* of each worker's share */
    worker worker[MAX_WORKERS];
} pool;

/* -- waiting ---------------------------------------------------------------------------------------------------- */

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sleep_while(_Atomic uint32_t *word, uint32_t value) {
#ifdef __linux__
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
#else
    (void)word, (void)value;
    sched_yield();
#endif
}

static void wake_all(_Atomic uint32_t *word) {
#ifdef __linux__
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
#else
    (void)word;
#endif
}

static void wait_change(_Atomic uint32_t *word, uint32_t old, _Atomic uint32_t *sleepers) {
    for (int32_t spin = 0; spin < SPIN_LIMIT; ++spin) {
        if (atomic_load_explicit(word, memory_order_acquire) != old) return;
        relax();
    }
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == old) sleep_while(word, old);
    atomic_fetch_sub(sleepers, 1);
}

/* The change of the word and the load are sequentially consistent, as are those of wait_change: one of the two sees the other. */
static void wake_sleepers(_Atomic uint32_t *word, _Atomic uint32_t *sleepers) {
    if (atomic_load(sleepers)) wake_all(word);
}

/* -- running ---------------------------------------------------------------------------------------------------- */

static inline uint32_t share_begin(uint32_t blocks, int32_t worker, int32_t threads) {
    return (uint32_t)((uint64_t)blocks * (uint32_t)worker / (uint32_t)threads);
}

static void fail(int64_t launch, int32_t code) {
    int64_t status = launch << 32 | (uint32_t)code;
    int64_t seen = atomic_load(&pool.failed);
    while ((seen == 0 || status < seen) && !atomic_compare_exchange_weak(&pool.failed, &seen, status)) {}
}

static int32_t run_alone(const tsc_launch *launch, void *scratch) {
    return launch->blocks > 0 ? launch->fn(&launch->args, 0, launch->blocks, scratch) : 0;
}

/* Take blocks of phase `phase` from the share of `victim`: how many, and in *begin which. None when the share is empty or the
 * phase is over. What is read of the phase before the exchange belongs to it if the exchange succeeds, because counters are
 * closed before any of it changes. */
static uint32_t take_blocks(uint32_t phase, int32_t victim, uint32_t *begin) {
    uint64_t seen = atomic_load_explicit(&pool.next[victim].value, memory_order_acquire);
    while (seen >> 32 == phase && (uint32_t)seen != CLOSED) {
        uint32_t blocks = atomic_load_explicit(&pool.blocks, memory_order_acquire);
        int32_t threads = atomic_load_explicit(&pool.threads, memory_order_acquire);
        uint32_t limit = share_begin(blocks, victim + 1, threads), from = (uint32_t)seen;
        if (from >= limit) return 0;
        uint32_t count = blocks / ((uint32_t)threads * CHUNKS_PER_SHARE);
        if (count < 1) count = 1;
        if (count > limit - from) count = limit - from;
        if (atomic_compare_exchange_weak_explicit(&pool.next[victim].value, &seen, seen + count, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            *begin = from;
            return count;
        }
    }
    return 0;
}

/* What one worker does in a phase: first the own share, front to back, then what is left of the others'. All blocks run even
 * when one reports a data error, so that the error reported does not depend on timing. */
static void run_blocks(uint32_t phase, int32_t me) {
    int32_t threads = atomic_load_explicit(&pool.threads, memory_order_acquire);
    if (me >= threads) return;
    for (int32_t k = 0; k < threads; ++k) {
        uint32_t begin, count;
        while ((count = take_blocks(phase, (me + k) % threads, &begin))) { /* the phase lasts until these are done */
            const tsc_launch *launch = atomic_load_explicit(&pool.launch, memory_order_relaxed);
            void *const *scratch = atomic_load_explicit(&pool.scratch, memory_order_relaxed);
            int64_t index = atomic_load_explicit(&pool.index, memory_order_relaxed);
            int32_t code = launch->fn(&launch->args, begin, (int64_t)begin + count, scratch[me]);
            if (code) fail(index, code);
            if (atomic_fetch_add(&pool.done, count) + count == atomic_load_explicit(&pool.blocks, memory_order_relaxed))
                wake_sleepers(&pool.done, &pool.waiting);
        }
    }
}

/* One launch on all workers that come, until it is done. */
static void run_phase(const tsc_launch *launch, int64_t index, int32_t threads, void *const *scratch) {
    uint32_t phase = atomic_load_explicit(&pool.phase, memory_order_relaxed) + 1, blocks = (uint32_t)launch->blocks;
    for (int32_t w = 0; w <= pool.workers; ++w)
        atomic_store_explicit(&pool.next[w].value, (uint64_t)phase << 32 | CLOSED, memory_order_relaxed);
    atomic_store_explicit(&pool.launch, launch, memory_order_release);
    atomic_store_explicit(&pool.scratch, scratch, memory_order_release);
    atomic_store_explicit(&pool.index, index, memory_order_release);
    atomic_store_explicit(&pool.blocks, blocks, memory_order_release);
    atomic_store_explicit(&pool.threads, threads, memory_order_release);
    atomic_store_explicit(&pool.done, 0, memory_order_relaxed);
    for (int32_t w = 0; w < threads; ++w)
        atomic_store_explicit(&pool.next[w].value, (uint64_t)phase << 32 | share_begin(blocks, w, threads), memory_order_release);
    atomic_store(&pool.phase, phase);
    wake_sleepers(&pool.phase, &pool.sleepers);
    run_blocks(phase, 0);
    for (uint32_t done; (done = atomic_load_explicit(&pool.done, memory_order_acquire)) != blocks;)
        wait_change(&pool.done, done, &pool.waiting);
}

static void *worker_main(void *argument) {
    worker *self = argument;
    uint32_t seen = 0;
    for (;;) {
        wait_change(&pool.phase, seen, &pool.sleepers);
        seen = atomic_load_explicit(&pool.phase, memory_order_acquire);
        if (atomic_load(&pool.stop)) return NULL;
        run_blocks(seen, self->id);
    }
}

/* -- the pool --------------------------------------------------------------------------------------------------- */

/* After a fork the child has the parent's memory but none of its threads: whatever the pool says there is void. */
static int32_t take_pool(void) {
    int32_t process = (int32_t)getpid(), owner = 0;
    if (!atomic_compare_exchange_strong(&pool.owner, &owner, process)) {
        if (owner == process || !atomic_compare_exchange_strong(&pool.owner, &owner, process)) return 0;
    }
    if (pool.process != process) {
        pool.process = process;
        pool.workers = 0;
        atomic_store(&pool.stop, 0);
        atomic_store(&pool.sleepers, 0);
        atomic_store(&pool.waiting, 0);
    }
    return 1;
}

static void give_pool(void) { atomic_store(&pool.owner, 0); }

static void grow_pool(int32_t wanted) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals belong to the host program's own threads */
    while (pool.workers < wanted) {
        worker *fresh = &pool.worker[pool.workers];
        fresh->id = pool.workers + 1;
        if (pthread_create(&fresh->thread, NULL, worker_main, fresh)) break;
        ++pool.workers;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static int64_t run_serial(const tsc_launch *launches, int64_t count, void *scratch) {
    for (int64_t i = 0; i < count; ++i) {
        int32_t code = run_alone(&launches[i], scratch);
        if (code) return i << 32 | (uint32_t)code;
    }
    return 0;
}

/* Run `count` launches in order on at most `threads` threads, the caller's included; `scratch[w]` is worker w's memory.
 * Returns 0, or (index << 32 | code) of the first launch that reported a data error; those after it did not run. */
EXPORT int64_t tsc_run(const tsc_launch *launches, int64_t count, int32_t threads, void *const *scratch) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; ++i)
        if (launches[i].blocks > most) most = launches[i].blocks;
    if (threads > most) threads = (int32_t)most;
    if (threads > MAX_WORKERS + 1) threads = MAX_WORKERS + 1;
    if (threads <= 1 || most >= CLOSED || !take_pool()) return run_serial(launches, count, scratch[0]);
    if (pool.workers < threads - 1) grow_pool(threads - 1);
    if (threads > pool.workers + 1) threads = pool.workers + 1;
    atomic_store(&pool.failed, 0);
    int64_t failed = 0;
    for (int64_t i = 0; i < count && !failed; ++i) {
        if (launches[i].blocks > 1) {
            run_phase(&launches[i], i, threads, scratch);
            failed = atomic_load(&pool.failed);
        } else {
            int32_t code = run_alone(&launches[i], scratch[0]);
            if (code) failed = i << 32 | (uint32_t)code;
        }
    }
    give_pool();
    return failed;
}

/* End the workers, so that the module may be unloaded. Returns 0, or 1 when a call is still running. */
EXPORT int32_t tsc_stop(void) {
    if (!take_pool()) return 1;
    atomic_store(&pool.stop, 1);
    atomic_fetch_add(&pool.phase, 1);
    wake_all(&pool.phase);
    for (int32_t w = 0; w < pool.workers; ++w) pthread_join(pool.worker[w].thread, NULL);
    pool.workers = 0;
    atomic_store(&pool.stop, 0);
    give_pool();
    return 0;
}
