/* The C ABI of an emulated CUDA module: a shared object made from a kernel source (compiled with -DTSC_EMU) and the emulator's
 * own .cpp files.
 *
 * A launch runs to its end before it returns, touches no memory but the kernel's arguments and registered ranges, and may be
 * called from several host threads at once (a launch in race mode sees only itself). It never hangs: a deadlock, a kernel that
 * runs past `timeout_ms`, a race or an access out of bounds ends the launch and comes back in the report. Every struct begins
 * with its own size, so that a newer reader and an older module notice each other. */
#ifndef TSC_EMU_ABI_H
#define TSC_EMU_ABI_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define TSC_EMU_ABI_VERSION 2

typedef struct {
  uint32_t x, y, z;
} tsc_emu_dim3;

/* How a launch behaves. */
enum {
  TSC_EMU_FAST = 0, /* asynchronous copies land at once; blocks spread over `host_threads` */
  TSC_EMU_LAZY = 1, /* asynchronous destinations hold 0xFF bytes until waited for, and land as late as the rules allow */
  TSC_EMU_RACE =
      2, /* happens-before check of every access to shared memory and to registered ranges; runs on one host thread */
  TSC_EMU_STRESS = 3, /* threads, blocks and asynchronous copies take a random but legal order drawn from `seed` */
};

/* How a launch ended. */
enum {
  TSC_EMU_OK = 0,
  TSC_EMU_BAD_LAUNCH = 1, /* no such kernel, or a grid, block, cluster or shared size that cannot run */
  TSC_EMU_RACE_FOUND = 2, /* two accesses, at least one a write, that nothing orders */
  TSC_EMU_OUT_OF_BOUNDS =
      3, /* outside every registered range, outside the block's shared memory, or a store to a read-only range */
  TSC_EMU_MISALIGNED = 4,
  TSC_EMU_UNINITIALISED = 5, /* race mode: shared memory read before any write */
  TSC_EMU_DEADLOCK = 6,      /* every thread that is left waits */
  TSC_EMU_DIVERGED = 7,      /* the lanes of a warp stand at different collectives, or a thread left while others wait for it */
  TSC_EMU_PROTOCOL = 8,      /* a primitive's own rule is broken (barrier count, descriptor, transaction bytes, ...) */
  TSC_EMU_TIMEOUT = 9,
};

/* Device memory the kernel may touch. Where at least one range is registered, every global access must lie inside one. */
typedef struct {
  const void* base;
  uint64_t bytes;
  uint32_t writable;
  uint32_t reserved;
} tsc_emu_range;

typedef struct {
  uint32_t struct_size;  /* sizeof(tsc_emu_options) */
  uint32_t mode;         /* TSC_EMU_FAST ... */
  uint64_t seed;         /* stress mode */
  uint32_t host_threads; /* 0 means 1 */
  uint32_t count;        /* non-zero: fill the counters of bank conflicts, sectors and lines (slower) */
  uint32_t timeout_ms;   /* 0 means 60000 */
  uint32_t range_count;
  const tsc_emu_range* ranges;
  uint32_t shared_limit; /* most dynamic shared bytes a block may ask for; 0 means 232448 */
  uint32_t reserved;
} tsc_emu_options;

/* What the emulator has for a CUtensorMap: the same 128 bytes, passed by value among the kernel's arguments. Axes run from the
 * innermost out. Checked at each use: address and strides are multiples of 16, box[i] is 1 to 256, box[0] elements are a
 * multiple of 16 bytes, and exactly the swizzle's bytes where there is one. */
#define TSC_EMU_TENSOR_MAP_MAGIC 0x50414d54u
typedef struct {
  uint32_t magic;  /* TSC_EMU_TENSOR_MAP_MAGIC */
  uint8_t dtype;   /* as CUtensorMapDataType: 0 u8, 1 u16, 2 u32, 3 i32, 4 u64, 5 i64, 6 f16, 7 f32, 8 f64, 9 bf16 */
  uint8_t rank;    /* 1 to 5 */
  uint8_t swizzle; /* as CUtensorMapSwizzle: 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes */
  uint8_t fill;    /* 0: zeros outside the tensor; the emulator knows no other */
  uint64_t address;
  uint64_t dims[5];    /* elements */
  uint64_t strides[4]; /* bytes from one index of axis i + 1 to the next; axis 0 is dense */
  uint32_t box[5];     /* elements */
  uint32_t reserved[5];
} tsc_emu_tensor_map;

/* What an access was. */
enum {
  TSC_EMU_READ = 0,
  TSC_EMU_WRITE = 1,
  TSC_EMU_ATOMIC = 2,
};

typedef struct {
  uint32_t line; /* line of the kernel source; 0 where unknown */
  uint32_t kind; /* TSC_EMU_READ ... */
  uint32_t
      asynchronous; /* 0 the thread itself; else on its behalf: 1 cp.async, 2 a bulk read, 3 a bulk write, 4 another engine */
  tsc_emu_dim3 block, thread;
} tsc_emu_access;

/* Traffic of one source line (counters on). */
typedef struct {
  uint32_t line;
  uint32_t reserved;
  uint64_t shared_requests, shared_wavefronts, bank_conflicts; /* conflicts = wavefronts above the least possible */
  uint64_t global_requests, global_sectors,
      ideal_sectors; /* 32-byte sectors a warp touches; the least for the bytes asked for */
} tsc_emu_line;

#define TSC_EMU_LINES 128

typedef struct {
  uint32_t struct_size; /* sizeof(tsc_emu_report), set by the caller */
  int32_t status;       /* TSC_EMU_OK ... */
  char message[1024];   /* one sentence or more; empty when OK */
  char kernel[128];
  tsc_emu_access access[2]; /* [0] the access that failed, [1] the earlier one it collides with (race only) */
  uint64_t
      address; /* shared: bytes from shared_base(), the block's rank in its cluster in bits 24 and up; global: the pointer */
  uint32_t shared; /* 1: `address` is in shared memory */
  uint32_t line_count;
  uint64_t blocks, switches, collectives, mma_instructions;
  uint64_t global_load_bytes, global_store_bytes, shared_load_bytes, shared_store_bytes; /* counters on, as all below */
  uint64_t shared_requests, shared_wavefronts, bank_conflicts;
  uint64_t global_requests, global_sectors, ideal_sectors;
  uint64_t paired_wavefronts; /* those of shared memory where twice as many lanes are served together if neighbours, or all
                                 those two apart, load from the same address (compute capability 7.0 and up) */
  tsc_emu_line lines[TSC_EMU_LINES]; /* ascending by line; the first TSC_EMU_LINES of them */
} tsc_emu_report;

/* What is known of a kernel before it runs. */
typedef struct {
  uint32_t struct_size; /* sizeof(tsc_emu_kernel), set by the caller */
  uint32_t max_threads; /* of its launch bound */
  uint32_t argument_count;
  uint32_t reserved;
  uint32_t argument_bytes[64]; /* sizes of the first 64 arguments */
} tsc_emu_kernel;

uint32_t tsc_emu_abi_version(void);
/* Name of the i-th kernel of the module, or NULL past the last. */
const char* tsc_emu_kernel_name(uint32_t index);
/* 0, or TSC_EMU_BAD_LAUNCH where the module has no such kernel. */
int32_t tsc_emu_kernel_info(const char* name, tsc_emu_kernel* info);
/* Run `kernel` over grid * block threads, in clusters of `cluster` blocks ({1,1,1} for none; the grid must be a multiple of
 * it). args[i] points to the i-th argument's value, as for cuLaunchKernel. Returns report->status. */
int32_t tsc_emu_launch(const char* kernel, tsc_emu_dim3 grid, tsc_emu_dim3 block, tsc_emu_dim3 cluster, uint32_t dynamic_shared,
                       void** args, const tsc_emu_options* options, tsc_emu_report* report);

#ifdef __cplusplus
}
#endif
#endif
