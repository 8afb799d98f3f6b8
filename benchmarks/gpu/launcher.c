/* What a launch costs a host program in C: driver entry points come as addresses, so nothing is linked. Nanoseconds of issuing alone;
 * whoever calls synchronises. Each function returns the driver's first status that is not 0. */
#include <stdint.h>
#include <time.h>

typedef struct {
  void *function;
  unsigned grid[3], block[3], shared;
  void **arguments;
} tsc_launch;

/* CUDA_KERNEL_NODE_PARAMS_v2 */
typedef struct {
  void *function;
  unsigned grid[3], block[3], shared;
  void **arguments, **extra;
  void *kernel, *context;
} tsc_node;

typedef int (*launch_entry)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
typedef int (*graph_launch_entry)(void *, void *);
typedef int (*set_params_entry)(void *, void *, const tsc_node *);

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1e9 + time.tv_nsec;
}

int tsc_time_launches(void *entry, const tsc_launch *launch, void *stream, int count, double *nanoseconds) {
  launch_entry call = (launch_entry)entry;
  double start = now();
  for (int i = 0; i < count; i++) {
    int status = call(launch->function, launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0], launch->block[1],
                      launch->block[2], launch->shared, stream, launch->arguments, 0);
    if (status) return status;
  }
  *nanoseconds = now() - start;
  return 0;
}

int tsc_time_graph_launches(void *entry, void *graph, void *stream, int count, double *nanoseconds) {
  graph_launch_entry call = (graph_launch_entry)entry;
  double start = now();
  for (int i = 0; i < count; i++) {
    int status = call(graph, stream);
    if (status) return status;
  }
  *nanoseconds = now() - start;
  return 0;
}

/* Give every node of the graph `launch`'s parameters again, `count` times over. */
int tsc_time_set_params(void *entry, void *graph, void *const *nodes, int node_count, const tsc_launch *launch, int count,
                        double *nanoseconds) {
  set_params_entry call = (set_params_entry)entry;
  tsc_node node = {launch->function, {launch->grid[0], launch->grid[1], launch->grid[2]},
                   {launch->block[0], launch->block[1], launch->block[2]}, launch->shared, launch->arguments, 0, 0, 0};
  double start = now();
  for (int i = 0; i < count; i++)
    for (int n = 0; n < node_count; n++) {
      int status = call(graph, nodes[n], &node);
      if (status) return status;
    }
  *nanoseconds = now() - start;
  return 0;
}

/* Entry points that do nothing, for devices that have none. */
int tsc_no_launch(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s, void **p, void **x) {
  (void)f, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h, (void)s, (void)p, (void)x;
  return 0;
}
int tsc_no_graph_launch(void *graph, void *stream) {
  (void)graph, (void)stream;
  return 0;
}
int tsc_no_set_params(void *graph, void *node, const tsc_node *params) {
  (void)graph, (void)node, (void)params;
  return 0;
}
