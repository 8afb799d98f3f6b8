/* What the parts of the runtime in a CPU module share: a table of launches (cpu_runtime.c runs it), what a Plan is in tables,
 * and the image that is made of them at a shape (cpu_host.c). runtime/host_program.py writes the tables with this layout.
 */
#ifndef TSC_CPU_HOST_H
#define TSC_CPU_HOST_H
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct { void *const *buffers; const int64_t *sizes; } tsc_args;
typedef int32_t (*tsc_kernel)(const tsc_args *args, int64_t block_begin, int64_t block_end, void *scratch);
typedef struct { tsc_kernel fn; tsc_args args; int64_t blocks; } tsc_launch;

enum { FITS, TOO_LARGE, DIVIDED, BROKEN, SHARED }; /* what tsc_bind returns */
enum { ADD, MULTIPLY, DIVIDE, MODULO, MAXIMUM, MINIMUM }; /* tape.OPERATIONS */

typedef struct { int32_t operation, result, a, b; } operation;
typedef struct { int32_t low, value, high; } check; /* low <= value <= high */
typedef struct { int64_t fixed; int32_t base, offset, bytes, unused; } storage; /* where it lies: base + fixed + offset */
typedef struct { int32_t first, second; } pair; /* storages that hold values at the same time */
typedef struct { int32_t variants, end, sizes, selects; } launch; /* its variants, its first size, whether there is a choice */
typedef struct { int32_t calls, end; } variant;
typedef struct { int64_t function; int32_t blocks, scratch, arguments, end, cost, unused; } call;
typedef struct { int32_t source, target, bytes; } copy;

typedef struct {
    int64_t slots, given, operations, checks, storages, pairs, extents, sizes, launches, copies, rows, arguments;
    const int64_t *values; /* of all slots: constants */
    const operation *operation;
    const check *check;
    const storage *storage;
    const pair *pair;
    const int32_t *extent, *size; /* slots of the outputs' extents, of the launches' sizes */
    const launch *launch;
    const variant *variant;
    const call *call;
    const int32_t *argument; /* storages */
    /* launch, resident, how many rates, on how many numbers of units sums were seen; (part, slot, rate) each; (units, sums)
     * each, units rising; (sum, thousandths) of each of these */
    const int64_t *cost;
    const copy *copy;
    int64_t arena; /* slot */
} tsc_program;

/* The image: these, the outputs' extents, the launches' sizes, the rows, their arguments, the copies. */
enum { ARENA, SCRATCH, SIZES, ROWS, ROW_COUNT, ARGUMENTS, ARGUMENT_COUNT, COPIES, COPY_COUNT, HEADER };

typedef struct { int64_t function, argument, size, blocks, launch; } row;
typedef struct { int64_t base, offset; } place;
typedef struct { place source, target; int64_t bytes; } move;

int64_t tsc_run(const tsc_launch *launches, int64_t count, int32_t threads, void *const *scratch);
int32_t tsc_stop(void);
int32_t tsc_bind(const tsc_program *program, const int64_t *extents, int64_t units, int64_t *values, int64_t *image);
int64_t tsc_call(const int64_t *image, const int64_t *bases, tsc_launch *table, void **pointers, int64_t begin, int64_t end,
                 int32_t threads, void *const *scratch);

#endif
