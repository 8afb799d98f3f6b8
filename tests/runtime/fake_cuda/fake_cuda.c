/* A libcuda.so.1 without a GPU, as far as tsc's driver uses one: memory is the host's, work runs when it is queued, and one kernel is
 * known, `scale(const float *x, float *y, float a, int n)`, as are `tile(map)` of one 128-byte argument and what is put in place by
 * hand below. It keeps to the driver's ABI (CUDA 13, cuda.h), refuses what a driver refuses where tests need that, and writes what it
 * was asked for into a log. Environment: FAKE_CUDA_VERSION, FAKE_CUDA_DEVICES, FAKE_CUDA_MEMORY (bytes). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, BAD_VALUE = 1, NO_MEMORY = 2, NO_DEVICE = 100, BAD_IMAGE = 200, BAD_CONTEXT = 201, NO_BINARY = 209, NOT_FOUND = 500 };
enum { MAX_NODES = 64 };
typedef struct { int kind; int shared; } function;
typedef struct { unsigned grid[3], block[3], shared; } shape;
typedef struct { function *func; unsigned grid[3], block[3], shared; void **args, **extra; void *kern, *ctx; } node_params;
typedef struct { function *func; shape at; uint64_t values[20]; } node;
typedef struct { node *nodes[MAX_NODES]; int count; } graph;
typedef struct { node nodes[MAX_NODES]; node *origins[MAX_NODES]; int count; } graph_exec;
typedef struct { int capture; graph *into; } stream;
typedef struct { int id; char pad[4]; union { unsigned cluster[3]; char bytes[64]; } value; } attribute;
typedef struct { unsigned grid[3], block[3], shared; stream *queue; attribute *attributes; unsigned count; } config;

static char log_text[1 << 16];
static size_t log_size;
static int current, version_calls, captures;
static size_t used, pool_used;
static function known[3] = {{0, 48 << 10}, {1, 48 << 10}, {2, 48 << 10}};
static const struct { const char *name; int count; size_t sizes[4]; } layouts[3] = {
    {"scale", 4, {8, 8, 4, 4}}, {"tile", 1, {128}}, {"wide", 4, {8, 8, 8, 8}}};

static void say(const char *format, ...) {
  va_list list;
  va_start(list, format);
  log_size += (size_t)vsnprintf(log_text + log_size, sizeof log_text - log_size, format, list);
  va_end(list);
}
static long setting(const char *name, long otherwise) { return getenv(name) ? atol(getenv(name)) : otherwise; }
static size_t total(void) { return (size_t)setting("FAKE_CUDA_MEMORY", 1 << 20); }
const char *fake_log(void) { return log_text; }
size_t fake_used(void) { return used + pool_used; }
#define CURRENT if (!current) return BAD_CONTEXT

static int take(function *f, shape at, void **args, node *out) {
  if ((int)at.shared > f->shared) return BAD_VALUE;
  out->func = f;
  out->at = at;
  char *to = (char *)out->values;
  for (int i = 0; i < layouts[f->kind].count; i++) {
    memcpy(to, args[i], layouts[f->kind].sizes[i]);
    to += layouts[f->kind].sizes[i];
  }
  return OK;
}
static void run(const node *n) {
  say("run %s %u,%u,%u %u,%u,%u %u\n", layouts[n->func->kind].name, n->at.grid[0], n->at.grid[1], n->at.grid[2], n->at.block[0],
      n->at.block[1], n->at.block[2], n->at.shared);
  if (n->func->kind == 0) {
    const float *x = (const float *)n->values[0];
    float *y = (float *)n->values[1], a;
    int count;
    memcpy(&a, &n->values[2], 4);
    memcpy(&count, (const char *)&n->values[2] + 4, 4);
    for (int i = 0; i < count; i++) y[i] = a * x[i];
  } else if (n->func->kind == 2) {
    for (uint64_t i = 0; i < n->values[3]; i++) ((float *)n->values[1])[i] = n->values[2] * ((const float *)n->values[0])[i];
  }
}
static int launch(function *f, shape at, void **args, stream *s) {
  CURRENT;
  node n;
  int status = take(f, at, args, &n);
  if (status != OK) return status;
  if ((uintptr_t)s > 2 && s->into) {
    node *kept = malloc(sizeof n);
    *kept = n;
    s->into->nodes[s->into->count++] = kept;
  } else {
    run(&n);
  }
  return OK;
}

int fake_cuInit(unsigned flags) { return setting("FAKE_CUDA_DEVICES", 1) ? OK : NO_DEVICE; }
int fake_cuDriverGetVersion(int *v) { *v = (int)setting("FAKE_CUDA_VERSION", 13000); version_calls++; return OK; }
int fake_cuDeviceGetCount(int *n) { *n = (int)setting("FAKE_CUDA_DEVICES", 1); return OK; }
int fake_cuDeviceGet(int *device, int index) { *device = index; return OK; }
int fake_cuDeviceGetName(char *name, int size, int device) { snprintf(name, (size_t)size, "Fake %d", device); return OK; }
int fake_cuDeviceTotalMem(size_t *bytes, int device) { *bytes = total(); return OK; }
int fake_cuDeviceGetAttribute(int *value, int what, int device) {
  switch (what) {
    case 75: *value = 9; break;         /* compute capability */
    case 76: *value = 0; break;
    case 16: *value = 132; break;       /* multiprocessors */
    case 97: *value = 227 << 10; break; /* shared memory of a block, by request */
    case 38: *value = 50 << 20; break;  /* L2 */
    default: return BAD_VALUE;
  }
  return OK;
}
int fake_cuDevicePrimaryCtxRetain(void **context, int device) { *context = &current; return OK; }
int fake_cuDevicePrimaryCtxRelease(int device) { say("release context\n"); return OK; }
int fake_cuCtxSetCurrent(void *context) { current = context == &current || context == NULL ? context != NULL : current; return OK; }
int fake_cuCtxSynchronize(void) { CURRENT; return OK; }
int fake_cuGetErrorString(int error, const char **text) { *text = error == BAD_VALUE ? "invalid argument" : "something else"; return OK; }

int fake_cuModuleLoadData(void **module, const void *image) {
  CURRENT;
  if (!memcmp(image, "sm_100a", 7)) return NO_BINARY;
  if (memcmp(image, "sm_90", 5)) return BAD_IMAGE;
  *module = known;
  return OK;
}
int fake_cuModuleUnload(void *module) { say("unload\n"); return OK; }
int fake_cuModuleGetFunction(function **f, void *module, const char *name) {
  for (int i = 0; i < 3; i++) if (!strcmp(name, layouts[i].name)) return *f = &known[i], OK;
  return NOT_FOUND;
}
int fake_cuFuncGetParamInfo(function *f, size_t index, size_t *offset, size_t *size) {
  if (index >= (size_t)layouts[f->kind].count) return BAD_VALUE;
  *offset = 0;
  *size = layouts[f->kind].sizes[index];
  return OK;
}
int fake_cuFuncSetAttribute(function *f, int what, int value) { say("attribute %d %d\n", what, value); f->shared = value; return OK; }

static int get(uint64_t *pointer, size_t bytes, size_t *count) {
  CURRENT;
  if (used + pool_used + bytes > total()) return NO_MEMORY;
  size_t *raw = aligned_alloc(256, (bytes + 511) / 256 * 256);
  raw[0] = bytes;
  *pointer = (uint64_t)(uintptr_t)raw + 256;
  *count += bytes;
  return OK;
}
static int put(uint64_t pointer, size_t *count) {
  size_t *raw = (size_t *)(uintptr_t)(pointer - 256);
  *count -= raw[0];
  free(raw);
  return OK;
}
static int pooled; /* one pool, whose freed memory stays reserved until it is trimmed */
static size_t kept;
int fake_cuMemAlloc(uint64_t *p, size_t bytes) { return used + kept + bytes > total() ? NO_MEMORY : get(p, bytes, &used); }
int fake_cuMemFree(uint64_t p) { return put(p, &used); }
int fake_cuMemAllocFromPoolAsync(uint64_t *p, size_t bytes, void *pool, stream *s) {
  int status = get(p, bytes, &pool_used);
  if (pool_used > kept) kept = pool_used;
  return status;
}
int fake_cuMemFreeAsync(uint64_t p, stream *s) { say("free in %s\n", s ? "stream" : "default"); return put(p, &pool_used); }
int fake_cuMemPoolCreate(void **pool, const void *properties) { *pool = &pooled; pooled++; return OK; }
int fake_cuMemPoolDestroy(void *pool) { say("destroy pool\n"); return OK; }
int fake_cuMemPoolSetAttribute(void *pool, int what, void *value) { say("pool %d %d\n", what, *(uint64_t *)value == UINT64_MAX); return OK; }
int fake_cuMemPoolGetAttribute(void *pool, int what, void *value) { *(uint64_t *)value = what == 7 ? pool_used : kept; return OK; }
int fake_cuMemPoolTrimTo(void *pool, size_t keep) { say("trim\n"); kept = pool_used > keep ? pool_used : keep; return OK; }
int fake_cuMemGetInfo(size_t *unused, size_t *all) { *all = total(); *unused = *all - used - kept; return OK; }
int fake_cuMemHostAlloc(void **p, size_t bytes, unsigned flags) { *p = malloc(bytes); return OK; }
int fake_cuMemFreeHost(void *p) { say("free host\n"); free(p); return OK; }

int fake_cuStreamCreate(stream **s, unsigned flags) { say("stream %u\n", flags); *s = calloc(1, sizeof **s); return OK; }
int fake_cuStreamDestroy(stream *s) { say("destroy stream\n"); free(s); return OK; }
int fake_cuStreamSynchronize(stream *s) { CURRENT; return OK; }
int fake_cuStreamWaitEvent(stream *s, void *event, unsigned flags) { say("wait %zu\n", (size_t)(uintptr_t)s <= 2 ? (size_t)(uintptr_t)s : 9); return OK; }
int fake_cuEventCreate(void **event, unsigned flags) { *event = malloc(1); return OK; }
int fake_cuEventDestroy(void *event) { free(event); return OK; }
int fake_cuEventRecord(void *event, stream *s) { say("record %zu\n", (size_t)(uintptr_t)s <= 2 ? (size_t)(uintptr_t)s : 9); return OK; }
int fake_cuEventQuery(void *event) { return OK; }
int fake_cuEventSynchronize(void *event) { return OK; }
int fake_cuEventElapsedTime(float *ms, void *start, void *stop) { *ms = 1.5f; return OK; }
int fake_cuMemcpyHtoDAsync(uint64_t to, const void *from, size_t bytes, stream *s) { CURRENT; memcpy((void *)(uintptr_t)to, from, bytes); return OK; }
int fake_cuMemcpyDtoHAsync(void *to, uint64_t from, size_t bytes, stream *s) { CURRENT; memcpy(to, (void *)(uintptr_t)from, bytes); return OK; }
int fake_cuMemcpyDtoDAsync(uint64_t to, uint64_t from, size_t bytes, stream *s) { memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes); return OK; }
int fake_cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, stream *s) { memset((void *)(uintptr_t)to, value, bytes); return OK; }
int fake_cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *dims, const uint64_t *strides,
                                const unsigned *box, const unsigned *steps, int interleave, int swizzle, int l2, int fill) {
  if ((uintptr_t)map % 64) return BAD_VALUE;
  say("map %d %u %lu,%lu %lu %u,%u %u,%u %d %d %d %d\n", type, rank, dims[0], dims[1], strides[0], box[0], box[1], steps[0], steps[1],
      interleave, swizzle, l2, fill);
  memset(map, 7, 128);
  return OK;
}

int fake_cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        stream *s, void **args, void **extra) {
  return launch(f, (shape){{gx, gy, gz}, {bx, by, bz}, shared}, args, s);
}
int fake_cuLaunchKernelEx(const config *c, function *f, void **args, void **extra) {
  for (unsigned i = 0; i < c->count; i++) {
    const unsigned *v = c->attributes[i].value.cluster;
    say("cluster %d %u,%u,%u\n", c->attributes[i].id, v[0], v[1], v[2]);
  }
  shape at = {{c->grid[0], c->grid[1], c->grid[2]}, {c->block[0], c->block[1], c->block[2]}, c->shared};
  return launch(f, at, args, c->queue);
}

int fake_cuStreamBeginCapture(stream *s, int mode) { say("capture %d\n", mode); s->capture = ++captures; s->into = calloc(1, sizeof(graph)); return OK; }
int fake_cuStreamEndCapture(stream *s, graph **g) { *g = s->into; s->into = NULL; s->capture = 0; return *g ? OK : BAD_VALUE; }
int fake_cuStreamGetCaptureInfo(stream *s, int *status, uint64_t *id, graph **g, node ***deps, const void **edges, size_t *count) {
  graph *into = (uintptr_t)s > 2 ? s->into : NULL;
  *status = into ? 1 : 0;
  if (!into) return OK;
  if (id) *id = (uint64_t)s->capture;
  if (g) *g = into;
  if (deps) *deps = &into->nodes[into->count ? into->count - 1 : 0];
  static const char plain[8];
  if (edges) *edges = plain;
  if (count) *count = into->count ? 1 : 0;
  return OK;
}
int fake_cuGraphCreate(graph **g, unsigned flags) { *g = calloc(1, sizeof **g); return OK; }
int fake_cuGraphDestroy(graph *g) { say("destroy graph\n"); for (int i = 0; i < g->count; i++) free(g->nodes[i]); free(g); return OK; }
int fake_cuGraphAddKernelNode(node **made, graph *g, node *const *before, size_t count, const node_params *p) {
  *made = g->nodes[g->count++] = calloc(1, sizeof **made);
  say("node after %zu\n", count);
  shape at = {{p->grid[0], p->grid[1], p->grid[2]}, {p->block[0], p->block[1], p->block[2]}, p->shared};
  return take(p->func, at, p->args, *made);
}
int fake_cuGraphAddDependencies(graph *g, node *const *from, node *const *to, const unsigned char (*edges)[8], size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (!from[i] || !to[i] || from[i] == to[i]) return BAD_VALUE;
    say("edge %d %d %d\n", edges[i][0], edges[i][1], edges[i][2]);
  }
  return OK;
}
int fake_cuGraphKernelNodeSetAttribute(node *n, int what, const unsigned *value) {
  say("node cluster %d %u,%u,%u\n", what, value[0], value[1], value[2]);
  return OK;
}
int fake_cuGraphInstantiateWithFlags(graph_exec **made, graph *g, unsigned long long flags) {
  *made = calloc(1, sizeof **made);
  (*made)->count = g->count;
  for (int i = 0; i < g->count; i++) (*made)->nodes[i] = *g->nodes[i], (*made)->origins[i] = g->nodes[i];
  return OK;
}
int fake_cuGraphExecDestroy(graph_exec *e) { say("destroy exec\n"); free(e); return OK; }
int fake_cuGraphExecKernelNodeSetParams(graph_exec *e, node *n, const node_params *p) {
  shape at = {{p->grid[0], p->grid[1], p->grid[2]}, {p->block[0], p->block[1], p->block[2]}, p->shared};
  for (int i = 0; i < e->count; i++) if (e->origins[i] == n) return take(p->func, at, p->args, &e->nodes[i]);
  return BAD_VALUE;
}
int fake_cuGraphLaunch(graph_exec *e, stream *s) { CURRENT; for (int i = 0; i < e->count; i++) run(&e->nodes[i]); return OK; }

int cuGetProcAddress_v2(const char *symbol, void **function_pointer, int version, uint64_t flags, int *status) {
  char name[128];
  snprintf(name, sizeof name, "fake_%s", symbol);
  *function_pointer = !strcmp(symbol, "cuGetProcAddress") ? (void *)cuGetProcAddress_v2 : dlsym(RTLD_DEFAULT, name);
  if (!*function_pointer) {
    Dl_info self;
    dladdr((void *)cuGetProcAddress_v2, &self);
    *function_pointer = dlsym(dlopen(self.dli_fname, RTLD_NOW), name);
  }
  if (status) *status = *function_pointer ? 0 : 1;
  return *function_pointer ? OK : NOT_FOUND;
}
