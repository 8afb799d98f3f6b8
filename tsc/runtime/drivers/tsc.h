/* A compiled model from C or C++. `python -m tsc export` writes this header, a shared library with the model's kernels and what
 * is declared here, and a file with its tables and weights. Neither Python nor a compiler is needed to run it:
 *
 *     char message[256];
 *     tsc_model *model = tsc_open("minilm.tscdata", 0, 0, message, sizeof message);
 *     int64_t extents[] = {1, 12, 1, 12, 1, 12};
 *     int32_t status = tsc_infer(model, inputs, extents, outputs, message, sizeof message);
 *
 * Every function that can fail writes one sentence of why into `message` (`room` bytes, zero-terminated; NULL and 0: none).
 * A model runs one call at a time; to run several at once open the file so often, with TSC_SHARED for one copy of the weights.
 * Two models in one program: open their libraries by dlopen and take each one's functions from it by dlsym.
 */
#ifndef TSC_H
#define TSC_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsc_model tsc_model;

/* What went wrong: sizes that the model does not take; data that it does not take (an index out of bounds); no memory; another
 * call is under way on this model; the file is none, damaged, of another library, or for another machine. */
enum { TSC_OK, TSC_SHAPE, TSC_DATA, TSC_MEMORY, TSC_BUSY, TSC_FILE };

/* Weights are mapped from the file, one copy for all processes, in place of copied onto 2 MB pages, from where they are read
 * faster. */
enum { TSC_SHARED = 1 };

/* An input or output: its name, its dtype as NumPy calls it, its shape as text ("[batch, seq]"), its rank, bytes of an element.
 */
typedef struct { const char *name, *dtype, *shape; int64_t rank, item_bytes; } tsc_tensor;

/* Open a model's file for runs on at most `threads` cores (0: all that this process may use). Returns NULL where it cannot. */
tsc_model *tsc_open(const char *path, int32_t threads, int32_t flags, char *message, size_t room);

/* Give back all that a model holds; not while a call is under way. NULL is allowed. */
void tsc_close(tsc_model *model);

/* How many inputs or outputs there are, and what they are, in the order in which all else takes them. */
int64_t tsc_inputs(const tsc_model *model, const tsc_tensor **tensors);
int64_t tsc_outputs(const tsc_model *model, const tsc_tensor **tensors);

/* The extents of all outputs, one after the other, for inputs of these extents, one after the other. Of `inputs`, what arrays
 * hold is read only where sizes depend on it. Returns a status. */
int32_t tsc_shapes(tsc_model *model, const void *const *inputs, const int64_t *extents, int64_t *of_outputs, char *message,
                   size_t room);

/* Compute all outputs. Arrays are contiguous, rows first, aligned as their elements are; outputs overlap nothing. Returns a
 * status; outputs hold anything unless that is TSC_OK. At extents that the call before had, nothing is allocated. */
int32_t tsc_infer(tsc_model *model, const void *const *inputs, const int64_t *extents, void *const *outputs, char *message,
                  size_t room);

#ifdef __cplusplus
}
#endif
#endif
