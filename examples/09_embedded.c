/* A compiled model in a program in C, without Python: it is run on ones, and timed.
 *
 *     python -m tsc compile model.onnx -o model.tscpack
 *     python -m tsc export model.tscpack -o out
 *     cc examples/09_embedded.c -Iout out/libmodel.so -Wl,-rpath,$PWD/out -o embedded
 *     ./embedded out/model.tscdata 1 12 1 12 1 12        # the sizes of all inputs, axis by axis
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tsc.h"

enum { MOST = 64 };

static int64_t count_of(const int64_t *extents, int64_t rank) {
    int64_t count = 1;
    for (int64_t axis = 0; axis < rank; ++axis) count *= extents[axis];
    return count;
}

static void *ones(const tsc_tensor *tensor, int64_t count) {
    char *data = (char *)calloc((size_t)count + 1, (size_t)tensor->item_bytes);
    float one = 1;
    for (int64_t k = 0; data && k < count; ++k)
        if (!strcmp(tensor->dtype, "float32")) memcpy(data + k * tensor->item_bytes, &one, sizeof one);
        else data[k * tensor->item_bytes] = 1; /* the lowest byte of a whole number */
    return data;
}

int main(int argc, char **argv) {
    char message[256] = "";
    const tsc_tensor *in, *out;
    int64_t extents[MOST] = {0}, shapes[MOST] = {0}, place = 0;
    const void *inputs[MOST];
    void *outputs[MOST];
    tsc_model *model = argc > 1 ? tsc_open(argv[1], 0, 0, message, sizeof message) : NULL;
    if (!model) return fprintf(stderr, "%s\n", argc > 1 ? message : "give a .tscdata file, then sizes"), 1;
    int64_t given = tsc_inputs(model, &in), made = tsc_outputs(model, &out);
    for (int k = 2; k < argc && k < MOST; ++k) extents[k - 2] = atoll(argv[k]);
    for (int64_t i = 0; i < given; place += in[i++].rank) {
        printf("input  %s: %s%s\n", in[i].name, in[i].dtype, in[i].shape);
        inputs[i] = ones(&in[i], count_of(extents + place, in[i].rank));
    }
    int status = tsc_shapes(model, inputs, extents, shapes, message, sizeof message);
    if (status) return fprintf(stderr, "%s\n", message), 1;
    for (int64_t i = place = 0; i < made; place += out[i++].rank)
        outputs[i] = calloc((size_t)count_of(shapes + place, out[i].rank) + 1, (size_t)out[i].item_bytes);
    double best = 1e9;
    for (int turn = 0; turn < 20 && !status; ++turn) {
        struct timespec a, b;
        timespec_get(&a, TIME_UTC);
        status = tsc_infer(model, inputs, extents, outputs, message, sizeof message);
        timespec_get(&b, TIME_UTC);
        double taken = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
        if (taken < best) best = taken;
    }
    if (status) return fprintf(stderr, "%s\n", message), 1;
    for (int64_t i = place = 0; i < made; place += out[i++].rank) {
        printf("output %s: %s%s, %lld elements", out[i].name, out[i].dtype, out[i].shape,
               (long long)count_of(shapes + place, out[i].rank));
        printf(strcmp(out[i].dtype, "float32") ? "\n" : ", the first is %.6g\n", *(float *)outputs[i]);
    }
    printf("%.3f ms\n", best);
    tsc_close(model);
    return 0;
}
