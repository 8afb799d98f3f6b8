// The C ABI: kernels by name, one launch at a time spread over host threads.
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>

#include "state.hpp"

#define TSC_EMU_EXPORT extern "C" __attribute__((visibility("default")))

namespace tsc::emu {

namespace {

Kernel* first_kernel = nullptr;

const Kernel* find_kernel(const char* name) {
  for (const Kernel* kernel = first_kernel; kernel; kernel = kernel->next)
    if (strcmp(kernel->name, name) == 0) return kernel;
  return nullptr;
}

u64 volume(const Index3& size) { return static_cast<u64>(size.x) * size.y * size.z; }

// Why these sizes cannot be launched; empty where they can.
std::string objection(const Launch& launch, u32 limit) {
  const u64 threads = volume(launch.block), cluster_blocks = volume(launch.cluster);
  if (volume(launch.grid) == 0 || volume(launch.grid) > 0xffffffffull)
    return "the grid must have at least one block and fewer than 2^32";
  if (threads == 0 || threads % 32 != 0)
    return "the block has " + std::to_string(threads) + " threads, which is no positive multiple of 32";
  if (threads > launch.kernel->max_threads)
    return "the block has " + std::to_string(threads) + " threads, but the kernel is bounded to " +
           std::to_string(launch.kernel->max_threads);
  if (cluster_blocks == 0 || cluster_blocks > 16) return "a cluster must have 1 to 16 blocks";
  if (launch.grid.x % launch.cluster.x || launch.grid.y % launch.cluster.y || launch.grid.z % launch.cluster.z)
    return "the grid is no multiple of the cluster";
  if (launch.shared_bytes > limit)
    return "the block asks for " + std::to_string(launch.shared_bytes) + " bytes of shared memory, but may have " +
           std::to_string(limit);
  return "";
}

void record_failure(Launch& launch, const Failure& failure) {
  tsc_emu_report& report = *launch.report;
  if (report.status != TSC_EMU_OK) return;
  report.status = failure.status;
  snprintf(report.message, sizeof report.message, "kernel %s: %s", launch.kernel->name, failure.message.c_str());
  memcpy(report.access, failure.access, sizeof report.access);
  report.address = failure.address;
  report.shared = failure.shared;
}

struct Queue {
  Launch& launch;
  std::vector<u32> order;  // of clusters
  std::atomic<u64> next;
  pthread_mutex_t mutex;  // guards the report
};

// One host thread: clusters one after another until none is left or somebody failed.
void* work(void* argument) {
  Queue& queue = *static_cast<Queue*>(argument);
  Launch& launch = queue.launch;
  Cluster state{};
  state.launch = &launch;
  u64 done = 0;
  while (!launch.stop.load(std::memory_order_relaxed)) {
    const u64 turn = queue.next.fetch_add(1);
    if (turn >= queue.order.size()) break;
    run_cluster(state, queue.order[turn]);
    if (state.failure) {
      launch.stop.store(true);
      break;
    }
    done++;
  }
  pthread_mutex_lock(&queue.mutex);
  if (state.failure) record_failure(launch, *state.failure);
  tsc_emu_report& report = *launch.report;
  report.blocks += done * volume(launch.cluster);
  report.switches += state.switches;
  report.collectives += state.collectives;
  report.mma_instructions += state.mma_instructions;
  state.tally.add_to(report);
  pthread_mutex_unlock(&queue.mutex);
  if (state.stacks) munmap(state.stacks, state.stacks_bytes);
  free(state.shared);
  return nullptr;
}

void run(Launch& launch) {
  const u32 clusters = static_cast<u32>(volume(launch.grid) / volume(launch.cluster));
  Queue queue{launch, std::vector<u32>(clusters), {0}, PTHREAD_MUTEX_INITIALIZER};
  std::vector<u32>& order = queue.order;
  for (u32 i = 0; i < clusters; i++) order[i] = i;
  if (launch.stress()) {
    u64 state = launch.options.seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
    for (u32 i = clusters; i > 1; i--) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      std::swap(order[i - 1], order[(state >> 33) % i]);
    }
  }
  std::unique_ptr<Race> race;
  if (launch.options.mode == TSC_EMU_RACE) {
    race = std::make_unique<Race>(launch.threads * static_cast<u32>(volume(launch.cluster)), launch.options.range_count);
    launch.race = race.get();
  }
  const u32 workers = race ? 1 : std::min(std::max(launch.options.host_threads, 1u), clusters);
  std::vector<pthread_t> others;
  for (u32 i = 1; i < workers; i++)
    if (pthread_t other; pthread_create(&other, nullptr, work, &queue) == 0) others.push_back(other);
  work(&queue);
  for (const pthread_t other : others) pthread_join(other, nullptr);
}

}  // namespace

void register_kernel(Kernel* kernel) {
  kernel->next = first_kernel;
  first_kernel = kernel;
}

}  // namespace tsc::emu

using namespace tsc::emu;

TSC_EMU_EXPORT uint32_t tsc_emu_abi_version(void) { return TSC_EMU_ABI_VERSION; }

TSC_EMU_EXPORT const char* tsc_emu_kernel_name(uint32_t index) {
  const Kernel* kernel = first_kernel;
  while (kernel && index-- != 0) kernel = kernel->next;
  return kernel ? kernel->name : nullptr;
}

TSC_EMU_EXPORT int32_t tsc_emu_kernel_info(const char* name, tsc_emu_kernel* info) {
  const Kernel* const kernel = find_kernel(name);
  if (!kernel || info->struct_size != sizeof *info) return TSC_EMU_BAD_LAUNCH;
  info->max_threads = kernel->max_threads;
  info->argument_count = kernel->argument_count;
  for (uint32_t i = 0; i < 64; i++) info->argument_bytes[i] = i < kernel->argument_count ? kernel->argument_bytes[i] : 0;
  return TSC_EMU_OK;
}

TSC_EMU_EXPORT int32_t tsc_emu_launch(const char* name, tsc_emu_dim3 grid, tsc_emu_dim3 block, tsc_emu_dim3 cluster_size,
                                      uint32_t dynamic_shared, void** args, const tsc_emu_options* options,
                                      tsc_emu_report* report) {
  if (report->struct_size != sizeof *report) return TSC_EMU_BAD_LAUNCH;
  memset(report, 0, sizeof *report);
  report->struct_size = sizeof *report;
  snprintf(report->kernel, sizeof report->kernel, "%s", name);
  std::string wrong;
  Launch launch{};
  launch.kernel = find_kernel(name);
  if (options->struct_size != sizeof *options) {
    wrong = "the options are of another version of the ABI";
  } else if (!launch.kernel) {
    wrong = "the module has no such kernel";
  } else {
    launch.grid = {grid.x, grid.y, grid.z};
    launch.block = {block.x, block.y, block.z};
    launch.cluster = {cluster_size.x, cluster_size.y, cluster_size.z};
    launch.threads = static_cast<tsc::u32>(volume(launch.block));
    launch.shared_bytes = dynamic_shared;
    launch.arguments = args;
    launch.options = *options;
    if (launch.options.timeout_ms == 0) launch.options.timeout_ms = 60000;
    launch.report = report;
    wrong = objection(launch, options->shared_limit ? options->shared_limit : 232448);
  }
  if (!wrong.empty()) {
    report->status = TSC_EMU_BAD_LAUNCH;
    snprintf(report->message, sizeof report->message, "kernel %s: %s", name, wrong.c_str());
    return report->status;
  }
  launch.deadline = now() + int64_t{1000000} * launch.options.timeout_ms;
  run(launch);
  return report->status;
}
