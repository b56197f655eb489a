// One launch: its clusters in sequence, or over several threads of the host.

#include <pthread.h>
#include <time.h>

#include <atomic>

#include "state.h"

namespace convgen_emulator {

static double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

constexpr double report_interval = 0.1;  // seconds

struct Work {
  const Request* request;
  Written written;
  std::vector<u32> order;  // of the clusters
  pthread_t caller = pthread_self();
  double reported = seconds();
  std::atomic<u32> next{0}, done{0};
  std::atomic<bool> interrupted{false};
  // The first in `order` of the clusters that have findings, and these: which, no timing of the host decides.
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  std::atomic<u32> failed{UINT32_MAX};
  Report report;

  explicit Work(const Request* request) : request(request), written(*request) {}
};

static void keep(Work& work, u32 i, Report report) {
  pthread_mutex_lock(&work.mutex);
  if (i < work.failed) {
    work.failed = i;
    work.report = std::move(report);
  }
  pthread_mutex_unlock(&work.mutex);
}

// Tells the caller how far the work is, and hears whether to give up.
static void tell(Work& work) {
  const u32 blocks = work.request->cluster;
  work.reported = seconds();
  if (work.request->progress && work.request->progress(work.done * blocks, u32(work.order.size()) * blocks)) {
    work.interrupted = true;
  }
}

// Whether to go on; tells the caller now and then, on the caller's own thread.
static bool go_on(Work& work) {
  if (pthread_equal(pthread_self(), work.caller) && seconds() - work.reported > report_interval) tell(work);
  return !work.interrupted;
}

// Stacks of launches that are over, a set for each thread of the host: to map and to fault in hundreds of them takes as
// long as a small launch.
struct Spare {
  static constexpr size_t most = 4096;  // of all sets, as the kernel counts mappings
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  std::vector<std::vector<Stack>> sets;
  size_t count = 0;

  std::vector<Stack> take() {
    std::vector<Stack> found;
    pthread_mutex_lock(&mutex);
    if (!sets.empty()) {
      found = std::move(sets.back());
      sets.pop_back();
      count -= found.size();
    }
    pthread_mutex_unlock(&mutex);
    return found;
  }
  void give_back(std::vector<Stack> set) {
    pthread_mutex_lock(&mutex);
    if (count + set.size() <= most) {
      count += set.size();
      sets.push_back(std::move(set));
    }
    pthread_mutex_unlock(&mutex);
  }
};
static Spare spare;

static void work_on(Work& work) {
  Machine m;
  SignalStack signals;
  Clockwork clockwork;
  m.stacks = spare.take();
  m.request = work.request;
  m.work = &work;
  m.written = &work.written;
  m.most_repeated = most_repeated(*work.request);
  machine = &m;
  for (;;) {
    const u32 i = work.next++;
    if (i >= work.order.size() || i > work.failed || !go_on(work)) break;
    Report report;
    m.report = &report;
    run_cluster(work.order[i]);
    if (!report.empty()) keep(work, i, std::move(report));
    ++work.done;
  }
  machine = nullptr;
  spare.give_back(std::move(m.stacks));
}

static void* work_beside(void* work) {
  work_on(*static_cast<Work*>(work));
  return nullptr;
}

}  // namespace convgen_emulator

using namespace convgen_emulator;

// 0: all ran; 1: there are findings, as JSON in `*findings`; 2: progress() gave up; 3: a finding is a trap.
CONVGEN_EXPORT int convgen_emulator_run(const Request* request, char** findings) {
  Work work(request);
  *findings = nullptr;
  const u32 clusters = request->grid[0] * request->grid[1] * request->grid[2] / request->cluster;
  for (u32 i = 0; i < clusters; ++i) work.order.push_back(i);
  if (request->seed) {  // blocks run in no particular order
    Random random(request->seed);
    for (u32 i = clusters; i > 1; --i) std::swap(work.order[i - 1], work.order[random.below(i)]);
  }
  {
    FaultHandlers handlers;
    std::vector<pthread_t> others;
    for (u32 i = 1; i < request->threads && i < clusters; ++i) {
      pthread_t other;
      if (pthread_create(&other, nullptr, work_beside, &work) == 0) others.push_back(other);
    }
    work_on(work);
    for (pthread_t other : others) pthread_join(other, nullptr);
  }
  if (!work.report.empty()) {
    *findings = strdup(work.report.json().c_str());
    return work.report.trapped ? 3 : 1;
  }
  if (!work.interrupted) tell(work);
  return work.interrupted ? 2 : 0;
}

CONVGEN_EXPORT void convgen_emulator_free(void* p) { free(p); }

// Global memory with room on both sides that faults; ends where the room begins, but for alignment.
constexpr u64 guard = 64ull << 20, device_alignment = 256;

CONVGEN_EXPORT void* convgen_emulator_allocate(u64 bytes) {
  const u64 page = u64(sysconf(_SC_PAGESIZE));
  const u64 inner = (bytes + page - 1) / page * page;
  void* all = mmap(nullptr, inner + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  char* low = static_cast<char*>(all) + guard;
  if (inner && mprotect(low, inner, PROT_READ | PROT_WRITE) != 0) {
    munmap(all, inner + 2 * guard);
    return nullptr;
  }
  return low + (inner - bytes) / device_alignment * device_alignment;
}

CONVGEN_EXPORT void convgen_emulator_release(void* p, u64 bytes) {
  const u64 page = u64(sysconf(_SC_PAGESIZE));
  const u64 inner = (bytes + page - 1) / page * page;
  char* low = static_cast<char*>(p) - (inner - bytes) / device_alignment * device_alignment;
  munmap(low - guard, inner + 2 * guard);
}
