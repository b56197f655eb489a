// Time: which thread runs next, and when an asynchronous operation happens.
//
// An operation happens when nothing else can go on and somebody waits for it; which of several, the seed says.
// Most seeds also let some happen earlier, set threads aside at calls, or keep a warpgroup behind.

#include "state.h"

namespace convgen_emulator {

thread_local Machine* machine;
thread_local Thread* current;
__thread const Place* place;

// ---- findings --------------------------------------------------------------------------------------------

[[noreturn]] static void abandon() {
  machine->stop = true;
  Context lost;
  convgen_switch(&lost, &machine->scheduler);
  __builtin_unreachable();
}

static void add_finding(const char* kind, int line, std::string message, const Thread* thread, u64 address = 0) {
  Finding found{kind, std::move(message), line, address, thread ? thread->block->flat : 0, {}};
  if (thread) found.threads.push_back(thread->index);
  if (machine->report->add(std::move(found))) machine->stop = true;
}

// Something is wrong, but the thread can go on (with garbage).
static void finding(const char* kind, int line, std::string message, const Thread* thread = current) {
  add_finding(kind, line, std::move(message), thread);
  if (machine->stop && current) abandon();
}

// Something is wrong, and nothing sensible can follow.
[[noreturn]] static void fatal(const char* kind, int line, std::string message, u64 address = 0) {
  add_finding(kind, line, std::move(message), current, address);
  abandon();
}

// An offset in shared memory as the source counts it: from the base aligned to 1024 bytes.
static std::string shared_name(const Block* block, u32 offset) {
  const u32 aligned = (0u - block->base) & 1023;
  return offset >= aligned ? format("base+0x%x", offset - aligned) : format("shared_memory+0x%x", offset);
}

// ---- trace -----------------------------------------------------------------------------------------------

static void note(const Event& event) {
  Events* events = machine->request->events;
  if (events && events->count++ < events->capacity) events->room[events->count - 1] = event;
}

static void note(Did what, const Thread* t, int line, u32 value = 0, u32 amount = 0) {
  note({u32(what), t->block->flat, t->warp->index, line, 0, 0, value, amount});
}

static void note(Did what, const Thread* t, int line, const Mbarrier& b, u32 value = 0, u32 amount = 0) {
  note({u32(what), t->block->flat, t->warp->index, line, b.block, b.offset, value, amount});
}

// ---- threads ---------------------------------------------------------------------------------------------

static bool chance(u32 in_1024) { return in_1024 && machine->random.below(1024) < in_1024; }

static void enqueue(Thread* t) { (t->slow ? machine->slow : machine->runnable).push_back(t); }

static void wake(Thread* t) {
  if (t->state != Thread::State::asleep) return;
  t->state = Thread::State::runnable;
  t->wait = Wait();
  enqueue(t);
}

static void wake_all(std::vector<Thread*>& threads) {
  for (Thread* t : threads) wake(t);
  threads.clear();
}

static Thread* choose(std::vector<Thread*>& threads) {
  const u32 i = machine->random.below(u32(threads.size()));
  Thread* t = threads[i];
  threads[i] = threads.back();
  threads.pop_back();
  return t;
}

constexpr u32 steps_unwatched = 256;  // after which the scheduler looks whether to go on

// ---- loops that do not end -------------------------------------------------------------------------------

constexpr u64 products_of_a_word = 64;  // take as long as to store it
static u64 words(u64 bytes) { return (bytes + 3) / 4; }

// How much a cluster may do before it writes another element: a kernel may add up all that it reads, but needs far less
// than this for each element of its arrays.
static u64 most_repeated(const Request& request) {
  constexpr u64 of_an_element = 128, least = 1 << 24;
  u64 elements = 0;
  for (u32 i = 0; i < request.region_count; ++i) {
    const Region& r = request.regions[i];
    elements += r.bytes / (r.element_bytes ? r.element_bytes : 1);
  }
  return elements * of_an_element > least ? elements * of_an_element : least;
}

[[noreturn]] static void does_not_end(int line, u64 address = 0) {
  const bool repeats = machine->repeated > machine->most_repeated && machine->idle < machine->repeated;
  fatal("endless loop", line,
        repeats ? "this loop goes on and on, and writes to global memory only what has been written before"
                : "this loop goes on and on, and nothing is stored, copied or multiplied",
        address);
}

// Counts words that are stored, copied or loaded from shared memory.  Whether there have been more than any kernel needs.
static bool repeats(u64 words) { return (machine->repeated += words) > machine->most_repeated; }

// Something that others may notice.
static void has_effect() {
  machine->idle = 0;
  ++machine->effects;
}

static void has_effect(u64 words, int line) {
  has_effect();
  if (repeats(words)) does_not_end(line);
}

// A thread has ended, or has written what nothing had.
static void has_progressed() {
  has_effect();
  machine->repeated = 0;
}

// Counts reads, or switches to another thread.  Whether there have been more of them than any kernel needs between two
// effects: seconds of nothing else.
static bool idles(u32 times) {
  constexpr u64 most = 1 << 27;
  return (machine->idle += times) > most;
}

// Lets another thread run.  The next one continues right from here where the scheduler would do no more than choose it.
static void to_scheduler() {
  Machine& m = *machine;
  Thread* self = current;
  if (idles(1)) does_not_end(self->wait.line);
  if (m.temper.deliver || m.stop || m.runnable.empty() || (m.steps + 1) % steps_unwatched == 0) {
    convgen_switch(&self->context, &m.scheduler);
    return;
  }
  ++m.steps;
  Thread* next = choose(m.runnable);
  current = next;
  place = &next->place;
  convgen_switch(&self->context, &next->context);
}

// Sleeps until woken; the caller looks again whether what it waits for is there.
static void sleep(const Wait& wait) {
  current->wait = wait;
  current->state = Thread::State::asleep;
  to_scheduler();
}

static void set_aside() {
  enqueue(current);
  to_scheduler();
}

// A place where another thread may go first.
static void preemption_point() {
  constexpr u32 often = 1 << 16;
  // a starved thread lets operations go first, too; a loop without end must not lock the caller out
  if (current->slow || chance(machine->temper.preempt) || ++machine->calls % often == 0) set_aside();
}

static Agent new_agent(Block* block) { return block->cluster->agents++; }

// The thread's next accesses come after what it has released.
static void tick(Thread* t) { t->clock.seen.raise({t->agent, t->clock.seen[t->agent] + 1}); }

static Epoch now(const Thread* t) { return {t->agent, t->clock.seen[t->agent]}; }

static void thread_exits(Thread* t);  // barriers.cc

static void thread_main() {
  machine->request->entry(machine->request->parameters);
  thread_exits(current);
  current->state = Thread::State::over;
  to_scheduler();
  __builtin_unreachable();
}

static void resume(Thread* t) {
  current = t;
  place = &t->place;
  convgen_switch(&machine->scheduler, &t->context);
  current = nullptr;
}

// ---- operations ------------------------------------------------------------------------------------------

static void start(std::unique_ptr<Operation> operation) {
  operation->rank = machine->temper.order == Order::newest_first ? ++machine->started : machine->random.next();
  machine->pending.push_back(std::move(operation));
}

static void perform(size_t i) {
  auto& pending = machine->pending;
  has_effect();
  if (!pending[i]->perform()) return;
  std::swap(pending[i], pending.back());
  pending.pop_back();
}

// Lets one operation happen, any that may or one that somebody waits for.  False where there is none.
static bool deliver(bool needed_only) {
  auto& pending = machine->pending;
  size_t chosen = 0;
  u32 count = 0;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (!pending[i]->eligible(needed_only)) continue;
    ++count;
    const bool better = machine->temper.order == Order::any
                            ? machine->random.below(count) == 0  // the same chance for each
                            : pending[i]->rank > pending[chosen]->rank;
    if (count == 1 || better) chosen = i;
  }
  if (count) perform(chosen);
  return count != 0;
}

// ---- deadlock --------------------------------------------------------------------------------------------

static std::string describe(const Mbarrier& b, const Block* block, u32 parity) {
  return format(
      "waits for the phase of parity %u on the mbarrier at %s (initialized at line %d): it is in phase %u, of "
      "parity %u, which lacks %d of %u arrivals and %lld bytes",
      parity, shared_name(block, b.offset).c_str(), b.line, b.phase, b.phase & 1, b.pending, b.arrivals, b.bytes);
}

static std::string describe(const Thread& t) {
  const Wait& w = t.wait;
  switch (w.what) {
    case WaitFor::mbarrier: return describe(*static_cast<const Mbarrier*>(w.on), t.block, w.value);
    case WaitFor::warp: {
      const auto& r = *static_cast<const Rendezvous*>(w.on);
      return format("waits at %s for the lanes 0x%08x of its warp", r.what, r.mask & ~r.arrived);
    }
    case WaitFor::named_barrier: {
      const auto& b = *static_cast<const NamedBarrier*>(w.on);
      const u32 expected = b.expected ? b.expected : t.block->alive;
      return format("waits at barrier %u, where %u of %u threads have arrived", w.value, b.arrived, expected);
    }
    case WaitFor::cluster_barrier: return "waits for the other threads of the cluster";
    case WaitFor::cp_async: return "waits for its cp.async groups";
    case WaitFor::bulk:
    case WaitFor::bulk_read: return "waits for its TMA store groups";
    case WaitFor::wgmma: return "waits for MMA groups that not every warp of the warpgroup has issued";
    case WaitFor::registers:
      return format("asks for %u registers a thread; the block has %u left", w.value, t.block->free_registers);
    case WaitFor::nothing: break;
  }
  return "waits";
}

static void report_deadlock() {
  for (auto& block : machine->cluster->blocks) {
    for (auto& t : block->threads) {
      if (t->state != Thread::State::asleep) continue;
      add_finding("deadlock", t->wait.line, describe(*t), t.get());
    }
  }
}

// ---- a cluster -------------------------------------------------------------------------------------------

constexpr u32 shared_window = 0x400;  // dynamic shared memory begins above what the system keeps
constexpr u32 warps_in_group = 4;

static void build_cluster(u32 index) {
  const Request& request = *machine->request;
  machine->cluster = std::make_unique<Cluster>();
  Cluster* cluster = machine->cluster.get();
  const bool calm = request.seed == 0;
  const u32 base = shared_window + (calm ? 0 : 16 * machine->random.below(64));  // 16 bytes is all that is promised
  size_t stack = 0;
  for (u32 rank = 0; rank < request.cluster; ++rank) {
    auto block = std::make_unique<Block>(request.shared_bytes);
    block->cluster = cluster;
    block->rank = rank;
    block->flat = index * request.cluster + rank;
    block->index = {block->flat % request.grid[0], block->flat / request.grid[0] % request.grid[1],
                    block->flat / request.grid[0] / request.grid[1]};
    block->base = base;
    block->alive = request.block;
    for (u32 i = 0; i < request.block; ++i) {
      auto t = std::make_unique<Thread>();
      t->place = {{i, 0, 0}, block->index, {request.block, 1, 1}, {request.grid[0], request.grid[1], request.grid[2]}};
      t->index = i;
      t->lane = i % 32;
      t->bit = 1u << t->lane;
      t->block = block.get();
      t->agent = cluster->agents++;
      if (i % 32 == 0) {
        auto warp = std::make_unique<Warp>();
        warp->index = i / 32;
        warp->block = block.get();
        const u32 lanes = request.block - i;
        warp->lanes = warp->alive = lanes >= 32 ? 0xffffffff : (1u << lanes) - 1;
        warp->registers = request.registers;
        if (warp->index % warps_in_group == 0) {
          auto group = std::make_unique<Warpgroup>();
          group->index = warp->index / warps_in_group;
          group->block = block.get();
          block->groups.push_back(std::move(group));
        }
        warp->group = block->groups.back().get();
        warp->group->warps.push_back(warp.get());
        block->warps.push_back(std::move(warp));
      }
      t->warp = block->warps.back().get();
      t->warp->threads.push_back(t.get());
      if (stack == machine->stacks.size()) machine->stacks.emplace_back();
      if (stack == machine->stacks_used) machine->stacks[machine->stacks_used++].forget();
      t->stack = machine->stacks[stack].low();
      t->context = machine->stacks[stack++].begin(&thread_main);
      block->threads.push_back(std::move(t));
    }
    cluster->alive += request.block;
    cluster->blocks.push_back(std::move(block));
  }
  for (auto& block : cluster->blocks) {
    block->start = new_agent(block.get());
    for (auto& t : block->threads) {
      tick(t.get());  // so that no access has count 0
      t->clock.seen.raise({block->start, 1});
    }
  }
  cluster->launch_before = cluster->agents++;
  if (!request.dependent) {
    for (auto& block : cluster->blocks) {
      for (auto& t : block->threads) t->clock.seen.raise({cluster->launch_before, 1});
    }
  }
  if (machine->temper.starve) {
    const u32 late = machine->random.below(u32(cluster->blocks[0]->groups.size()));
    for (auto& block : cluster->blocks) {
      for (Warp* w : block->groups[late]->warps) {
        for (Thread* t : w->threads) t->slow = true;
      }
    }
  }
  for (auto& block : cluster->blocks) {
    for (auto& t : block->threads) enqueue(t.get());
    for (auto& warp : block->warps) note(Did::start, warp->threads[0], 0);
  }
}

static void check_requests(const Warp* warp);  // warp.cc

constexpr const char* load_not_waited = "the block ends without anybody having waited for this load";

static void check_left_over() {
  for (auto& operation : machine->pending) {
    if (const char* wrong = operation->left_over()) {
      add_finding("in flight at exit", operation->line, wrong, operation->issuer);
    }
  }
  for (auto& block : machine->cluster->blocks) {
    for (auto& warp : block->warps) check_requests(warp.get());
    for (auto& [agent, visit] : block->visits) {
      if (block->exits.covers(visit.epoch)) continue;
      add_finding("out of bounds", visit.line,
                  format("block %u of the cluster may have exited by then: nothing orders this access before its end",
                         block->rank),
                  block->threads[0].get());
    }
    for (auto& [offset, b] : block->mbarriers) {
      if (b.landed_line) add_finding("in flight at exit", b.landed_line, load_not_waited, block->threads[0].get());
      if (b.bytes == 0) continue;
      add_finding(
          "transaction count", b.line,
          format("the mbarrier at %s is left %lld bytes short of what was expected: loads and expected bytes differ",
                 shared_name(block.get(), offset).c_str(), b.bytes),
          block->threads[0].get());
    }
  }
}

static bool go_on(Work& work);  // launch.cc

static void run_cluster(u32 index) {
  Machine& m = *machine;
  const u64 seed = m.request->seed;
  m.random.reseed(seed * 0x100000001b3 + index);
  m.temper = Temper();
  if (seed != 0) {
    constexpr u32 deliver[] = {0, 4, 64, 512}, preempt[] = {0, 64};
    m.temper.order = m.random.below(2) ? Order::by_rank : Order::any;
    m.temper.deliver = deliver[m.random.below(4)];
    m.temper.preempt = preempt[m.random.below(2)];
    m.temper.starve = m.random.below(4) != 0;
  }
  m.runnable.clear();
  m.slow.clear();
  m.pending.clear();
  m.calls = m.accesses = m.started = 0;
  m.idle = m.repeated = 0;
  build_cluster(index);
  for (m.steps = 1; m.cluster->alive && !m.stop; ++m.steps) {
    if (m.steps % steps_unwatched == 0 && !go_on(*m.work)) m.stop = true;
    if (chance(m.temper.deliver)) deliver(false);
    if (!m.runnable.empty()) {
      resume(choose(m.runnable));
    } else if (deliver(true)) {
    } else if (!m.slow.empty()) {
      resume(choose(m.slow));
    } else {
      report_deadlock();
      m.stop = true;
    }
  }
  if (m.stop) return;
  check_left_over();
  while (deliver(false)) {  // stores that nobody waited for still reach global memory
  }
}

}  // namespace convgen_emulator
