/* The host program that is compiled into every CPU module: what a Plan's numbers are at a shape (tsc_bind), and a run of its
 * launches with these numbers (tsc_call). What a Plan is stands in tables that runtime/host_program.py writes, with the layout of the
 * image, which holds all that a run at one shape needs. A number that does not fit, a condition that does not hold: tsc_bind
 * gives up, and the Python interpreter of the Plan, which is also what the numbers are tested against, says what is wrong.
 */
#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "cpu_host.h"

static int64_t floor_divided(int64_t a, int64_t b) {
    int64_t q = a / b;
    return q - (a % b != 0 && (a < 0) != (b < 0));
}

static int compute(const tsc_program *p, int64_t *values) {
    for (int64_t i = 0; i < p->operations; ++i) {
        const operation *o = &p->operation[i];
        int64_t a = values[o->a], b = values[o->b], result = 0;
        switch (o->operation) {
        case ADD: if (__builtin_add_overflow(a, b, &result)) return TOO_LARGE; break;
        case MULTIPLY: if (__builtin_mul_overflow(a, b, &result)) return TOO_LARGE; break;
        case DIVIDE: case MODULO:
            if (b == 0) return DIVIDED;
            if (a == INT64_MIN && b == -1) return TOO_LARGE;
            result = floor_divided(a, b);
            if (o->operation == MODULO) result = a - result * b;
            break;
        case MAXIMUM: result = a > b ? a : b; break;
        case MINIMUM: result = a < b ? a : b; break;
        }
        values[o->result] = result;
    }
    return FITS;
}

static int verify(const tsc_program *p, const int64_t *values) {
    for (int64_t i = 0; i < p->checks; ++i) {
        const check *c = &p->check[i];
        if (values[c->value] < values[c->low] || values[c->value] > values[c->high]) return BROKEN;
    }
    for (int64_t i = 0; i < p->pairs; ++i) {
        const storage *a = &p->storage[p->pair[i].first], *b = &p->storage[p->pair[i].second];
        int64_t from_a = values[a->offset], from_b = values[b->offset], of_a = values[a->bytes], of_b = values[b->bytes];
        if (of_a > 0 && of_b > 0 && from_a < from_b + of_b && from_b < from_a + of_a) return SHARED;
    }
    return FITS;
}

static int64_t waves(int64_t blocks, int64_t at_once) { return blocks / at_once + (blocks % at_once != 0); }

/* Femtoseconds of one call: runtime/cost.py, term by term, to the last bit. */
static double expected(const tsc_program *p, const call *c, const int64_t *values, int64_t units) {
    const int64_t *cost = &p->cost[c->cost], *rate = cost + 4, *of_units = rate + 3 * cost[2];
    const int64_t *sums = of_units + 2 * cost[3], *seen = sums;
    int64_t blocks = values[c->blocks], count = 0, nearest = INT64_MAX;
    for (int64_t k = 0; k < cost[3]; ++k, of_units += 2) {
        int64_t distance = of_units[0] < units ? units - of_units[0] : of_units[0] - units;
        if (distance < nearest) nearest = distance, seen = sums, count = of_units[1];
        sums += 2 * of_units[1];
    }
    int64_t times[3] = {waves(blocks, units * cost[1]), waves(blocks, units), blocks};
    double time = (double)cost[0], most = blocks > 1 ? (double)blocks : 1;
    for (int64_t k = 0; k < cost[2]; ++k, rate += 3)
        time += (double)rate[2] * (double)values[rate[1]] * (double)times[rate[0]] / most;
    if (count) {
        int64_t above = 0;
        while (above < count && !((double)seen[2 * above] > time)) ++above;
        const int64_t *low = &seen[2 * (above ? above - 1 : 0)], *high = &seen[2 * (above < count ? above : count - 1)];
        double between = (double)low[1];
        if (high[0] > low[0])
            between += (double)(high[1] - low[1]) * (time - (double)low[0]) / (double)(high[0] - low[0]);
        time += time * (between - 1000) / 1000;
    }
    return time;
}

/* Which Variant of a launch runs: select.least. */
static int32_t chosen(const tsc_program *p, const launch *l, const int64_t *values, int64_t units) {
    int32_t best = l->variants;
    double first = 0, least = 0;
    for (int32_t v = l->variants; l->selects && v < l->end; ++v) {
        double time = 0;
        for (int32_t c = p->variant[v].calls; c < p->variant[v].end; ++c) time += expected(p, &p->call[c], values, units);
        if (v == l->variants) first = least = time;
        if (time < least) least = time, best = v;
    }
    return least * 1020 < first * 1000 ? best : l->variants;
}

static void lay_out(const tsc_program *p, const int64_t *values, int64_t units, int64_t *image) {
    int64_t *sizes = image + HEADER + p->extents, scratch = 0, rows = 0, arguments = 0;
    row *rows_at = (row *)(sizes + p->sizes);
    place *arguments_at = (place *)(rows_at + p->rows);
    move *copies_at = (move *)(arguments_at + p->arguments);
    for (int64_t i = 0; i < p->extents; ++i) image[HEADER + i] = values[p->extent[i]];
    for (int64_t i = 0; i < p->sizes; ++i) sizes[i] = values[p->size[i]];
    for (int64_t i = 0; i < p->launches; ++i) {
        const launch *l = &p->launch[i];
        const variant *v = &p->variant[chosen(p, l, values, units)];
        for (int32_t k = v->calls; k < v->end; ++k) {
            const call *c = &p->call[k];
            rows_at[rows++] = (row){c->function, arguments, l->sizes, values[c->blocks], i};
            if (values[c->scratch] > scratch) scratch = values[c->scratch];
            for (int32_t a = c->arguments; a < c->end; ++a) {
                const storage *s = &p->storage[p->argument[a]];
                arguments_at[arguments++] = (place){s->base, s->fixed + values[s->offset]};
            }
        }
    }
    for (int64_t i = 0; i < p->copies; ++i) {
        const storage *s = &p->storage[p->copy[i].source], *t = &p->storage[p->copy[i].target];
        copies_at[i] = (move){{s->base, s->fixed + values[s->offset]}, {t->base, t->fixed + values[t->offset]},
                              values[p->copy[i].bytes]};
    }
    image[ARENA] = values[p->arena];
    image[SCRATCH] = (scratch + 63) / 64 * 64;
    image[SIZES] = sizes - image, image[ROWS] = (int64_t *)rows_at - image, image[ROW_COUNT] = rows;
    image[ARGUMENTS] = (int64_t *)arguments_at - image, image[ARGUMENT_COUNT] = arguments;
    image[COPIES] = (int64_t *)copies_at - image, image[COPY_COUNT] = p->copies;
}

/* Fill the image for inputs of these extents, on a device of so many units; `values` is room for all slots. Returns 0, or why
 * there is none. */
EXPORT int32_t tsc_bind(const tsc_program *program, const int64_t *extents, int64_t units, int64_t *values, int64_t *image) {
    memcpy(values, program->values, (size_t)program->slots * sizeof *values);
    memcpy(values, extents, (size_t)program->given * sizeof *values);
    int status = compute(program, values);
    if (!status) status = verify(program, values);
    if (!status) lay_out(program, values, units, image);
    return status;
}

/* Run rows `begin` to `end` of an image, and after its last row its copies. `bases` are what places count from; `table` and
 * `pointers` are room for all rows and all arguments. Returns what tsc_run does, with the number of the launch. */
EXPORT int64_t tsc_call(const int64_t *image, const int64_t *bases, tsc_launch *table, void **pointers, int64_t begin,
                        int64_t end, int32_t threads, void *const *scratch) {
    const row *rows = (const row *)(image + image[ROWS]);
    const place *arguments = (const place *)(image + image[ARGUMENTS]);
    const move *copies = (const move *)(image + image[COPIES]);
    if (end > image[ROW_COUNT]) end = image[ROW_COUNT];
    for (int64_t i = 0; i < image[ARGUMENT_COUNT]; ++i)
        pointers[i] = (void *)(intptr_t)(bases[arguments[i].base] + arguments[i].offset);
    for (int64_t i = begin; i < end; ++i)
        table[i] = (tsc_launch){(tsc_kernel)(intptr_t)rows[i].function,
                                {pointers + rows[i].argument, image + image[SIZES] + rows[i].size}, rows[i].blocks};
    int64_t status = tsc_run(table + begin, end - begin, threads, scratch);
    if (status) return rows[begin + (status >> 32)].launch << 32 | (status & UINT32_MAX);
    for (int64_t i = 0; i < image[COPY_COUNT] && end == image[ROW_COUNT]; ++i)
        memmove((void *)(intptr_t)(bases[copies[i].target.base] + copies[i].target.offset),
                (const void *)(intptr_t)(bases[copies[i].source.base] + copies[i].source.offset), (size_t)copies[i].bytes);
    return 0;
}
