/* Runs launches that a file describes, each storage in a malloc of exactly its size; see sanitized.py for the file.
 * KERNELS lists the kernels: X(name) for each. What it runs is said on stderr, between the reports of a sanitizer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { void *const *buffers; const int64_t *sizes; } tsc_args;
#define X(name) int32_t name(const tsc_args *, int64_t, int64_t, void *);
KERNELS
#undef X
#define X(name) name,
static int32_t (*const kernels[])(const tsc_args *, int64_t, int64_t, void *) = {KERNELS};

static FILE *file;

static void bytes(void *to, int64_t size) {
  if (size && fread(to, 1, (size_t)size, file) != (size_t)size) exit(3);
}

static int64_t word(void) {
  int64_t value;
  bytes(&value, sizeof value);
  return value;
}

static void *exactly(int64_t size, int fill) {
  void *made = malloc((size_t)size);
  if (size && !made) exit(4);
  if (size) memset(made, fill, (size_t)size);
  return made;
}

static int32_t launch(void **storages) {
  int64_t kernel = word(), blocks = word(), scratch = word(), buffers = word();
  void **places = exactly(buffers * (int64_t)sizeof *places, 0);
  for (int64_t i = 0; i < buffers; ++i) places[i] = storages[word()];
  int64_t count = word(), *sizes = exactly(count * (int64_t)sizeof *sizes, 0);
  bytes(sizes, count * (int64_t)sizeof *sizes);
  tsc_args args = {places, sizes};
  int32_t status = 0;
  for (int64_t part = 3; part-- > 0 && !status;) { /* a few calls, the last blocks first, each with fresh scratch */
    int64_t begin = blocks * part / 3, end = blocks * (part + 1) / 3;
    void *room = exactly(scratch, 0xff);
    if (begin < end) status = kernels[kernel](&args, begin, end, room);
    free(room);
  }
  free(places);
  free(sizes);
  return status;
}

int main(int count, char **arguments) {
  if (count != 2 || !(file = fopen(arguments[1], "rb"))) return 2;
  for (int64_t runs = word(); runs-- > 0;) {
    int64_t length = word(), stop = 0;
    char name[512] = {0};
    bytes(name, length);
    int64_t storages = word();
    void **places = exactly(storages * (int64_t)sizeof *places, 0);
    for (int64_t i = 0; i < storages; ++i) {
      int64_t size = word();
      places[i] = exactly(size, 0xff);
      if (word()) bytes(places[i], size);
    }
    int64_t launches = word();
    for (int64_t i = 0; i < launches; ++i) {
      int64_t next = word();
      fprintf(stderr, "== %s, launch %lld\n", name, (long long)i);
      if (stop) fseek(file, (long)next, SEEK_CUR);
      else stop = launch(places); /* a data error: what follows would not run */
    }
    for (int64_t i = 0; i < storages; ++i) free(places[i]);
    free(places);
  }
  fprintf(stderr, "== done\n");
  return 0;
}
