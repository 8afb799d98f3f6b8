/* What tsc.h declares, in every CPU module: a model's file (runtime/export.py writes it) opened, and its host program
 * (cpu_host.c) run with memory of its own.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cpu_host.h"
#include "tsc.h"

#define HUGE_PAGE ((size_t)2 << 20)
#define MAX_THREADS 257 /* the caller's and those that cpu_runtime.c starts */
#define MAX_NUMBER ((int64_t)1 << 47) /* no size is above: schema.MAX_NUMBER */

extern const char tsc_interface[];      /* the table of kernels */
extern const intptr_t tsc_functions[];  /* how many functions, and each, in the order of that table */

/* The file: this, then tables and texts, and from `weights` on the constants. Texts are offsets; 0 is none. */
#define MAGIC "TSCDATA\1"
typedef struct { int64_t name, dtype, shape, rank, item_bytes, contents, steps, kind; } tensor; /* kind: NumPy's, a letter */
typedef struct { int64_t node, messages, count; } kernel_texts; /* of a launch: messages are offsets of texts */
typedef struct {
    char magic[8];
    int64_t bytes, crc, module_crc, inputs, outputs, weights, weight_bytes, functions, calls;
    int64_t tensors, reasons, launches, flags; /* reasons: a text a check; flags: features that a CPU must have, in a text */
    tsc_program program; /* whose tables are offsets here */
} file;

struct tsc_model {
    const unsigned char *data;
    int64_t bytes;
    tsc_tensor *tensors;
    tsc_program program;
    call *calls;
    int64_t *given, *wanted, *values, *image, *bases; /* given: of the image, where it is bound */
    void **pointers;
    tsc_launch *table;
    unsigned char *weights, *arena, *scratch;
    size_t weight_room, arena_room, scratch_room;
    void *per_worker[MAX_THREADS];
    int32_t threads, bound;
    _Atomic int32_t busy;
};

static _Atomic int32_t models; /* that are open: the last ends the workers */

static const file *head(const tsc_model *m) { return (const file *)m->data; }
static const char *text(const tsc_model *m, int64_t offset) { return (const char *)m->data + offset; }
static const tensor *tensors(const tsc_model *m) { return (const tensor *)(m->data + head(m)->tensors); }

__attribute__((format(printf, 4, 5)))
static int32_t say(char *message, size_t room, int32_t status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (message && room) vsnprintf(message, room, format, arguments);
    va_end(arguments);
    return status;
}

/* -- memory ----------------------------------------------------------------------------------------------------- */

static size_t rounded(size_t bytes) {
    size_t page = bytes < HUGE_PAGE ? 4096 : HUGE_PAGE;
    return (bytes + page - 1) / page * page;
}

/* So much memory, on 2 MB pages where it has that much: the room that was taken begins before it. */
static unsigned char *taken(size_t bytes, size_t *room) {
    size_t wanted = rounded(bytes ? bytes : 1), slack = wanted < HUGE_PAGE ? 0 : HUGE_PAGE;
    unsigned char *all = mmap(NULL, wanted + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return NULL;
    unsigned char *begin = all;
    if (slack) {
        begin = (unsigned char *)(((uintptr_t)all + slack - 1) / slack * slack);
        if (begin > all) munmap(all, (size_t)(begin - all));
        size_t after = slack - (size_t)(begin - all);
        if (after) munmap(begin + wanted, after);
        madvise(begin, wanted, MADV_HUGEPAGE);
    }
    *room = wanted;
    return begin;
}

static int grown(unsigned char **block, size_t *room, size_t bytes) {
    if (*block && bytes <= *room) return 1;
    if (*block) munmap(*block, *room);
    *room = 0;
    return (*block = taken(bytes, room)) != NULL;
}

/* -- opening ---------------------------------------------------------------------------------------------------- */

static uint32_t crc_of(const unsigned char *data, size_t bytes) { /* as zlib's */
    uint32_t table[256], crc = UINT32_MAX;
    for (uint32_t n = 0; n < 256; ++n) {
        uint32_t c = n;
        for (int k = 0; k < 8; ++k) c = c & 1 ? 0xEDB88320u ^ c >> 1 : c >> 1;
        table[n] = c;
    }
    for (size_t i = 0; i < bytes; ++i) crc = table[(crc ^ data[i]) & 255] ^ crc >> 8;
    return ~crc;
}

/* The first of the features in a text, set apart by blanks, that this machine does not say it has; NULL where it has all. */
static const char *lacking(const char *flags, char one[64]) {
    char line[16384] = " ";
    FILE *info = fopen("/proc/cpuinfo", "r");
    while (info && fgets(line + 1, sizeof line - 2, info))
        if (!strncmp(line + 1, "flags", 5) || !strncmp(line + 1, "Features", 8)) break;
    if (info) fclose(info);
    line[strcspn(line, "\n")] = ' ';
    for (int read; sscanf(flags, " %61s%n", one + 1, &read) == 1; flags += read) {
        one[0] = ' ';
        strcat(one, " ");
        if (!strstr(line, one)) return one[strlen(one) - 1] = 0, one + 1;
    }
    return NULL;
}

static int32_t map_file(tsc_model *m, const char *path, char *message, size_t room) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    struct stat found;
    if (descriptor < 0 || fstat(descriptor, &found) || !S_ISREG(found.st_mode) || found.st_size < (off_t)sizeof(file)) {
        if (descriptor >= 0) close(descriptor);
        return say(message, room, TSC_FILE, "'%s' cannot be read or is no model's file; give the .tscdata of an export", path);
    }
    void *data = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    close(descriptor);
    if (data == MAP_FAILED) return say(message, room, TSC_MEMORY, "not enough memory to map '%s'", path);
    m->data = data, m->bytes = found.st_size;
    const file *f = head(m);
    if (memcmp(f->magic, MAGIC, sizeof f->magic))
        return say(message, room, TSC_FILE, "'%s' is no model's file, or of another version; export it again", path);
    if (f->bytes != m->bytes || f->weights < (int64_t)sizeof *f || f->weights > f->bytes
        || crc_of((const unsigned char *)&f->module_crc, (size_t)f->weights - offsetof(file, module_crc)) != f->crc)
        return say(message, room, TSC_FILE, "'%s' is damaged; copy or export it again", path);
    if (crc_of((const unsigned char *)tsc_interface, strlen(tsc_interface)) != f->module_crc
        || f->functions != tsc_functions[0])
        return say(message, room, TSC_FILE, "'%s' belongs to another library than the one that opens it; take both of one "
                   "export", path);
    char room_for_one[64];
    const char *flag = lacking(text(m, f->flags), room_for_one);
    if (flag)
        return say(message, room, TSC_FILE, "this machine lacks %s, which the kernels need; export for another target", flag);
    return TSC_OK;
}

static int made_room(tsc_model *m, int private_weights) {
    const file *f = head(m);
    tsc_program *p = &m->program;
    *p = f->program;
#define OPEN(table) p->table = (const void *)(m->data + (intptr_t)p->table)
    OPEN(values), OPEN(operation), OPEN(check), OPEN(storage), OPEN(pair), OPEN(extent), OPEN(size), OPEN(launch);
    OPEN(variant), OPEN(call), OPEN(argument), OPEN(cost), OPEN(copy);
#undef OPEN
    size_t words = HEADER + p->extents + p->sizes
        + (p->rows * sizeof(row) + p->arguments * sizeof(place) + p->copies * sizeof(move)) / 8;
    size_t count = (size_t)(f->inputs + f->outputs);
    m->calls = calloc((size_t)f->calls + 1, sizeof *m->calls);
    m->tensors = calloc(count + 1, sizeof *m->tensors);
    m->given = calloc((size_t)p->given + 1, 8), m->wanted = calloc((size_t)p->given + 1, 8);
    m->values = calloc((size_t)p->slots + 1, 8), m->image = calloc(words, 8), m->bases = calloc(count + 2, 8);
    m->pointers = calloc((size_t)p->arguments + 1, sizeof *m->pointers);
    m->table = calloc((size_t)p->rows + 1, sizeof *m->table);
    if (!m->calls || !m->tensors || !m->given || !m->wanted || !m->values || !m->image || !m->bases || !m->pointers
        || !m->table)
        return 0;
    memcpy(m->calls, p->call, (size_t)f->calls * sizeof *m->calls);
    for (int64_t k = 0; k < f->calls; ++k)
        m->calls[k].function = (int64_t)tsc_functions[1 + m->calls[k].function];
    p->call = m->calls;
    for (size_t k = 0; k < count; ++k) {
        const tensor *t = &tensors(m)[k];
        m->tensors[k] = (tsc_tensor){text(m, t->name), text(m, t->dtype), text(m, t->shape), t->rank, t->item_bytes};
    }
    if (private_weights && f->weight_bytes) {
        if (!(m->weights = taken((size_t)f->weight_bytes, &m->weight_room))) return 0;
        memcpy(m->weights, m->data + f->weights, (size_t)f->weight_bytes);
    }
    return 1;
}

EXPORT tsc_model *tsc_open(const char *path, int32_t threads, int32_t flags, char *message, size_t room) {
    tsc_model *m = calloc(1, sizeof *m);
    if (!m) return say(message, room, 0, "not enough memory"), NULL;
    atomic_fetch_add(&models, 1);
    if (threads <= 0) {
        cpu_set_t cores;
        threads = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
    }
    m->threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    int32_t status = map_file(m, path, message, room);
    if (!status && !made_room(m, !(flags & TSC_SHARED)))
        status = say(message, room, TSC_MEMORY, "not enough memory for '%s'", path);
    if (!status) return m;
    tsc_close(m);
    return NULL;
}

EXPORT void tsc_close(tsc_model *m) {
    if (!m) return;
    if (m->data) munmap((void *)m->data, (size_t)m->bytes);
    if (m->weights) munmap(m->weights, m->weight_room);
    if (m->arena) munmap(m->arena, m->arena_room);
    if (m->scratch) munmap(m->scratch, m->scratch_room);
    free(m->tensors), free(m->calls), free(m->given), free(m->wanted), free(m->values), free(m->image), free(m->bases);
    free(m->pointers), free(m->table), free(m);
    if (atomic_fetch_sub(&models, 1) == 1) tsc_stop(); /* the library may be unloaded */
}

EXPORT int64_t tsc_inputs(const tsc_model *m, const tsc_tensor **found) { return *found = m->tensors, head(m)->inputs; }
EXPORT int64_t tsc_outputs(const tsc_model *m, const tsc_tensor **found) {
    return *found = m->tensors + head(m)->inputs, head(m)->outputs;
}

/* -- sizes ------------------------------------------------------------------------------------------------------ */

/* An element of an array on which sizes depend, in steps; whether it is a whole number of them. */
static int element(const tensor *t, const void *array, int64_t index, int64_t *value) {
    const unsigned char *at = (const unsigned char *)array + index * t->item_bytes;
    if (t->kind == 'f') {
        float single;
        double number;
        if (t->item_bytes == sizeof single) memcpy(&single, at, sizeof single), number = single;
        else memcpy(&number, at, sizeof number);
        number *= (double)t->steps;
        if (!(number > -0x1p62 && number < 0x1p62)) return 0;
        *value = (int64_t)number;
        return (double)*value == number;
    }
    uint64_t bits = 0;
    memcpy(&bits, at, (size_t)t->item_bytes); /* the lowest bytes come first on every machine that has a target */
    int unused = 64 - 8 * (int)t->item_bytes;
    *value = t->kind == 'i' ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
    return t->kind == 'i' || bits <= INT64_MAX;
}

static int32_t gather(tsc_model *m, const void *const *inputs, const int64_t *extents, char *message, size_t room) {
    int64_t *word = m->wanted;
    for (int64_t i = 0; i < head(m)->inputs; ++i) {
        const tensor *t = &tensors(m)[i];
        int64_t count = 1;
        for (int64_t axis = 0; axis < t->rank; ++axis, ++extents) {
            if (*extents < 0 || *extents > MAX_NUMBER)
                return say(message, room, TSC_SHAPE, "the size of input '%s' at axis %lld is %lld, expected 0 to %lld",
                           text(m, t->name), (long long)axis, (long long)*extents, (long long)MAX_NUMBER);
            if (__builtin_mul_overflow(count, *extents, &count)) count = INT64_MAX;
            *word++ = *extents;
        }
        if (t->contents && count != t->contents)
            return say(message, room, TSC_SHAPE, "input '%s' has %lld elements, expected %lld, on which sizes depend",
                       text(m, t->name), (long long)count, (long long)t->contents);
        for (int64_t k = 0; k < t->contents; ++k)
            if (!element(t, inputs[i], k, word++))
                return say(message, room, TSC_DATA, "input '%s' holds at place %lld what is no whole number, on which sizes "
                           "depend", text(m, t->name), (long long)k);
    }
    return TSC_OK;
}

/* Which condition does not hold, of those that tsc_bind looked at. */
static int32_t explain(const tsc_model *m, char *message, size_t room) {
    const tsc_program *p = &m->program;
    const check *checks = p->check;
    const int64_t *reasons = (const int64_t *)(m->data + head(m)->reasons), *values = m->values;
    for (int64_t i = 0; i < p->checks; ++i) {
        long long low = values[checks[i].low], value = values[checks[i].value], high = values[checks[i].high];
        if (value >= low && value <= high) continue;
        if (!reasons[i]) break;
        const char *what = text(m, reasons[i]);
        if (low == high) return say(message, room, TSC_SHAPE, "%s is %lld, expected %lld", what, value, low);
        if (high == INT64_MAX) return say(message, room, TSC_SHAPE, "%s is %lld, expected at least %lld", what, value, low);
        if (low == INT64_MIN) return say(message, room, TSC_SHAPE, "%s is %lld, expected at most %lld", what, value, high);
        return say(message, room, TSC_SHAPE, "%s is %lld, expected %lld to %lld", what, value, low, high);
    }
    return say(message, room, TSC_SHAPE, "at these sizes the model needs more than its kernels or any memory have; use others");
}

static int32_t bind(tsc_model *m, const void *const *inputs, const int64_t *extents, char *message, size_t room) {
    int32_t status = gather(m, inputs, extents, message, room);
    size_t bytes = (size_t)m->program.given * sizeof *m->given;
    if (status || (m->bound && !memcmp(m->given, m->wanted, bytes))) return status;
    m->bound = 0;
    int32_t problem = tsc_bind(&m->program, m->wanted, m->threads, m->values, m->image);
    if (problem == TOO_LARGE) return say(message, room, TSC_SHAPE, "at these sizes the model has a number beyond 64 bits");
    if (problem == DIVIDED) return say(message, room, TSC_SHAPE, "at these sizes a size of the model is divided by zero");
    if (problem) return explain(m, message, room);
    memcpy(m->given, m->wanted, bytes);
    m->bound = 1;
    return TSC_OK;
}

/* -- running ---------------------------------------------------------------------------------------------------- */

static int32_t run(tsc_model *m, const void *const *inputs, void *const *outputs, char *message, size_t room) {
    const file *f = head(m);
    size_t scratch = (size_t)m->image[SCRATCH];
    if (!grown(&m->arena, &m->arena_room, (size_t)m->image[ARENA])
        || !grown(&m->scratch, &m->scratch_room, scratch * (size_t)m->threads))
        return say(message, room, TSC_MEMORY, "not enough memory: %lld bytes are needed, and %lld for each of %d threads",
                   (long long)m->image[ARENA], (long long)scratch, m->threads);
    for (int32_t w = 0; w < m->threads; ++w) m->per_worker[w] = m->scratch + scratch * (size_t)w;
    m->bases[0] = (int64_t)(intptr_t)(m->weights ? m->weights : m->data + f->weights);
    m->bases[1] = (int64_t)(intptr_t)m->arena;
    for (int64_t i = 0; i < f->inputs; ++i) m->bases[2 + i] = (int64_t)(intptr_t)inputs[i];
    for (int64_t i = 0; i < f->outputs; ++i) m->bases[2 + f->inputs + i] = (int64_t)(intptr_t)outputs[i];
    int64_t wrong = tsc_call(m->image, m->bases, m->table, m->pointers, 0, INT64_MAX, m->threads, m->per_worker);
    if (!wrong) return TSC_OK;
    const kernel_texts *own = (const kernel_texts *)(m->data + f->launches) + (wrong >> 32);
    int64_t code = wrong & UINT32_MAX;
    if (code > own->count)
        return say(message, room, TSC_DATA, "status %lld (in the kernel of node '%s')", (long long)code, text(m, own->node));
    return say(message, room, TSC_DATA, "%s (in the kernel of node '%s')",
               text(m, ((const int64_t *)(m->data + own->messages))[code - 1]), text(m, own->node));
}

static int32_t begun(tsc_model *m, char *message, size_t room) {
    if (!atomic_exchange(&m->busy, 1)) return TSC_OK;
    return say(message, room, TSC_BUSY, "another call is under way on this model; open it once more to run two at once");
}

EXPORT int32_t tsc_shapes(tsc_model *m, const void *const *inputs, const int64_t *extents, int64_t *of_outputs, char *message,
                          size_t room) {
    int32_t status = begun(m, message, room);
    if (status) return status;
    status = bind(m, inputs, extents, message, room);
    if (!status) memcpy(of_outputs, m->image + HEADER, (size_t)m->program.extents * sizeof *of_outputs);
    atomic_store(&m->busy, 0);
    return status;
}

EXPORT int32_t tsc_infer(tsc_model *m, const void *const *inputs, const int64_t *extents, void *const *outputs, char *message,
                         size_t room) {
    int32_t status = begun(m, message, room);
    if (status) return status;
    status = bind(m, inputs, extents, message, room);
    if (!status) status = run(m, inputs, outputs, message, room);
    atomic_store(&m->busy, 0);
    return status;
}
