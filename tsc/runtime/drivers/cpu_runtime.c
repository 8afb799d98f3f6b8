/* The runtime that is compiled into every CPU module: one call runs a whole table of launches on a pool of threads.
 *
 * Single program, multiple data: every worker walks the same table, takes blocks of each launch, and meets the others at a
 * barrier before the next. Waiting spins for a bounded while and then sleeps on a futex. The pool is made at the first call
 * that can use it and kept; a second simultaneous call finds it taken and runs on its own thread.
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

#define EXPORT __attribute__((visibility("default")))
#define MAX_WORKERS 256
#define SPIN_LIMIT 4000   /* about 0.1 ms: longer than most launches, shorter than a time slice */
#define CHUNKS_PER_SHARE 4 /* how finely a worker's share may be taken over by a worker that is done */

typedef struct { void *const *buffers; const int64_t *sizes; } tsc_args;
typedef int32_t (*tsc_kernel)(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch);
typedef struct { tsc_kernel fn; tsc_args args; int64_t blocks; } tsc_launch;

typedef struct { _Alignas(64) _Atomic int64_t value; } counter;

typedef struct {
    _Alignas(64) _Atomic uint32_t go; /* changed by the caller: there is a job (or stop) */
    _Atomic uint32_t asleep;
    pthread_t thread;
    int32_t id;
} worker;

static struct {
    _Alignas(64) _Atomic int32_t owner; /* process id of the call that holds the pool, 0 when free */
    int32_t process;                    /* in which process the workers live */
    int32_t workers;                    /* how many were made; the caller itself is one more */
    /* the job */
    const tsc_launch *launches;
    int64_t count;
    int32_t threads;
    int32_t stop;
    void *const *scratch;
    _Alignas(64) _Atomic int64_t failed; /* 0, or the least (launch << 32 | code) */
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t generation;
    _Atomic uint32_t sleepers;
    _Alignas(64) _Atomic uint32_t working; /* workers still in the job: its fields change only when there are none */
    _Atomic uint32_t waiting;
    counter next[2][MAX_WORKERS + 1];   /* next block of each worker's share, for this phase and the one to come */
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

/* The store and the load are sequentially consistent, as are those of wait_change: one of the two sees the other. */
static void change(_Atomic uint32_t *word, uint32_t value, _Atomic uint32_t *sleepers) {
    atomic_store(word, value);
    if (atomic_load(sleepers)) wake_all(word);
}

static void barrier(void) {
    uint32_t generation = atomic_load_explicit(&pool.generation, memory_order_acquire);
    if ((int32_t)atomic_fetch_add_explicit(&pool.arrived, 1, memory_order_acq_rel) + 1 == pool.threads) {
        atomic_store_explicit(&pool.arrived, 0, memory_order_relaxed);
        change(&pool.generation, generation + 1, &pool.sleepers);
    } else {
        wait_change(&pool.generation, generation, &pool.sleepers);
    }
}

/* -- running ---------------------------------------------------------------------------------------------------- */

static inline int64_t share_begin(int64_t blocks, int32_t worker) { return blocks * worker / pool.threads; }

static void fail(int64_t launch, int32_t code) {
    int64_t status = launch << 32 | (uint32_t)code;
    int64_t seen = atomic_load(&pool.failed);
    while ((seen == 0 || status < seen) && !atomic_compare_exchange_weak(&pool.failed, &seen, status)) {}
}

static int32_t run_alone(const tsc_launch *launch, void *scratch) {
    return launch->blocks > 0 ? launch->fn(&launch->args, 0, launch->blocks, scratch) : 0;
}

/* First the own share, front to back, then what is left of the others'. All blocks run even when one reports a data error,
 * so that the error reported does not depend on timing. */
static void run_blocks(int64_t index, counter *next, int32_t me) {
    const tsc_launch *launch = &pool.launches[index];
    int64_t chunk = launch->blocks / ((int64_t)pool.threads * CHUNKS_PER_SHARE);
    if (chunk < 1) chunk = 1;
    for (int32_t k = 0; k < pool.threads; ++k) {
        int32_t victim = (me + k) % pool.threads;
        int64_t limit = share_begin(launch->blocks, victim + 1);
        for (;;) {
            int64_t begin = atomic_fetch_add_explicit(&next[victim].value, chunk, memory_order_relaxed);
            if (begin >= limit) break;
            int64_t end = begin + chunk < limit ? begin + chunk : limit;
            int32_t code = launch->fn(&launch->args, begin, end, pool.scratch[me]);
            if (code) fail(index, code);
        }
    }
}

/* What one worker does in a job. A phase is one launch, or a run of launches of at most one block, which worker 0 takes alone.
 * The counters of a phase are set during the phase before it, when nobody reads them. */
static void run_share(int32_t me) {
    const tsc_launch *launches = pool.launches;
    int64_t count = pool.count;
    uint32_t phase = 0;
    for (int64_t begin = 0, end; begin < count; begin = end, ++phase) {
        end = begin + 1;
        if (launches[begin].blocks <= 1)
            while (end < count && launches[end].blocks <= 1) ++end;
        if (end < count)
            atomic_store_explicit(&pool.next[(phase + 1) & 1][me].value, share_begin(launches[end].blocks, me),
                                  memory_order_relaxed);
        if (launches[begin].blocks > 1) {
            run_blocks(begin, pool.next[phase & 1], me);
        } else if (me == 0) {
            int32_t code = 0;
            for (int64_t i = begin; i < end && !code; ++i)
                if ((code = run_alone(&launches[i], pool.scratch[0]))) fail(i, code);
        }
        if (end == count) return;
        barrier();
        int64_t failed = atomic_load(&pool.failed);
        if (failed && failed >> 32 < end) return; /* a worker ahead of us may have failed in a later phase: not yet */
    }
}

static void leave(void) {
    if (atomic_fetch_sub(&pool.working, 1) == 1 && atomic_load(&pool.waiting)) wake_all(&pool.working);
}

static void wait_for_workers(void) {
    for (int32_t spin = 0; spin < SPIN_LIMIT; ++spin) {
        if (!atomic_load_explicit(&pool.working, memory_order_acquire)) return;
        relax();
    }
    atomic_store(&pool.waiting, 1);
    for (uint32_t left; (left = atomic_load(&pool.working));) sleep_while(&pool.working, left);
    atomic_store(&pool.waiting, 0);
}

static void *worker_main(void *argument) {
    worker *self = argument;
    uint32_t seen = 0;
    for (;;) {
        wait_change(&self->go, seen, &self->asleep);
        seen = atomic_load_explicit(&self->go, memory_order_acquire);
        if (pool.stop) return NULL;
        run_share(self->id);
        leave();
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
        pool.stop = 0;
        atomic_store(&pool.arrived, 0);
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
        atomic_store(&fresh->go, 0);
        atomic_store(&fresh->asleep, 0);
        if (pthread_create(&fresh->thread, NULL, worker_main, fresh)) break;
        ++pool.workers;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void post(int32_t workers) {
    for (int32_t w = 0; w < workers; ++w) {
        worker *one = &pool.worker[w];
        change(&one->go, atomic_load_explicit(&one->go, memory_order_relaxed) + 1, &one->asleep);
    }
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
    if (threads <= 1 || !take_pool()) return run_serial(launches, count, scratch[0]);
    if (pool.workers < threads - 1) grow_pool(threads - 1);
    if (threads > pool.workers + 1) threads = pool.workers + 1;
    pool.launches = launches;
    pool.count = count;
    pool.threads = threads;
    pool.scratch = scratch;
    atomic_store(&pool.failed, 0);
    for (int32_t w = 0; w < threads; ++w) atomic_store(&pool.next[0][w].value, share_begin(launches[0].blocks, w));
    atomic_store(&pool.working, (uint32_t)threads - 1);
    post(threads - 1);
    run_share(0);
    wait_for_workers();
    int64_t failed = atomic_load(&pool.failed);
    give_pool();
    return failed;
}

/* End the workers, so that the module may be unloaded. Returns 0, or 1 when a call is still running. */
EXPORT int32_t tsc_stop(void) {
    if (!take_pool()) return 1;
    pool.stop = 1;
    post(pool.workers);
    for (int32_t w = 0; w < pool.workers; ++w) pthread_join(pool.worker[w].thread, NULL);
    pool.workers = 0;
    pool.stop = 0;
    give_pool();
    return 0;
}
