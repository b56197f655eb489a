// Synchronization: lanes that meet, named barriers, mbarriers, the cluster's barrier, and a thread's exit.

#include "state.h"

namespace convgen_emulator {

// ---- lanes of a warp -------------------------------------------------------------------------------------

static void complete(Rendezvous* r) {
  r->complete(*r);
  for (Thread* t : r->warp->threads) {
    if (!(r->mask & t->bit)) continue;
    t->met = true;
    wake(t);
  }
}

static std::unique_ptr<Rendezvous> take(Warp* warp, const Rendezvous* r) {
  for (auto& slot : warp->open) {
    if (slot.get() != r) continue;
    auto found = std::move(slot);
    slot = std::move(warp->open.back());
    warp->open.pop_back();
    return found;
  }
  return nullptr;
}

enum class Lanes { all, not_exited, masked };

// Meets the other lanes at one instruction.  The last to come runs `complete` with every lane's arguments.
static void meet(Site site, const char* what, Lanes who, u32 mask, int line, void* arguments,
                 void (*complete_)(Rendezvous&)) {
  Thread* t = current;
  Warp* warp = t->warp;
  const bool aligned = who != Lanes::masked;
  if (aligned) mask = who == Lanes::all ? warp->lanes : warp->alive;
  if (!(mask & t->bit))
    fatal("divergence", line, format("%s with mask 0x%08x, in which lane %u is not", what, mask, t->lane));
  if (mask & ~warp->alive) {
    fatal("divergence", line, format("%s by lanes of which some have exited (0x%08x)", what, mask & ~warp->alive));
  }
  Rendezvous* r = nullptr;
  for (auto& other : warp->open) {
    const bool same_place = other->what == what && (!aligned || other->site == site);
    if (same_place && other->mask == mask && !(other->arrived & t->bit)) {
      r = other.get();
    } else if (aligned && other->aligned) {
      fatal("divergence", line,
            format("lane %u is at %s while lanes 0x%08x of its warp are at %s of line %d", t->lane, what,
                   other->arrived, other->what, other->line));
    }
  }
  if (!r) {
    warp->open.push_back(std::make_unique<Rendezvous>());
    r = warp->open.back().get();
    r->what = what;
    r->line = line;
    r->site = site;
    r->mask = mask;
    r->arrived = 0;
    r->aligned = aligned;
    r->exits_count = who == Lanes::not_exited;
    r->complete = complete_;
    r->warp = warp;
  }
  r->arguments[t->lane] = arguments;
  r->arrived |= t->bit;
  t->met = false;
  if (r->arrived == r->mask) {
    const auto whole = take(warp, r);
    complete(whole.get());
    return;
  }
  while (!t->met) sleep({WaitFor::warp, line, r, 0});
}

static void lanes_exit(Thread* t) {
  Warp* warp = t->warp;
  for (size_t i = 0; i < warp->open.size(); ++i) {
    Rendezvous* r = warp->open[i].get();
    if (!(r->mask & t->bit)) continue;
    if (!r->exits_count) {
      fatal("divergence", r->line,
            format("lane %u exits while lanes 0x%08x of its warp are at %s", t->lane, r->arrived, r->what));
    }
    r->mask &= ~t->bit;
    if (r->arrived == r->mask) {
      const auto whole = take(warp, r);
      complete(whole.get());
      return;  // an aligned rendezvous is alone
    }
  }
}

// ---- named barriers --------------------------------------------------------------------------------------

static void release(NamedBarrier& b) {
  Clock all;
  for (Thread* t : b.participants) all.join(t->clock);
  all.seen.raise({b.agent, b.generation + 1});
  ++machine->meetings;
  for (Thread* t : b.participants) {
    note(Did::sync, t, b.line, machine->meetings);
    t->clock = all;
    tick(t);
    wake(t);
  }
  b.participants.clear();
  b.arrived = 0;
  ++b.generation;
}

static bool full(const NamedBarrier& b, const Block* block) {
  return b.arrived && b.arrived >= (b.expected ? b.expected : block->alive);
}

struct BarrierArrival {
  int barrier;
  u32 threads;
  u32 generation;
};

static void arrive_named(Rendezvous& r) {
  Warp* warp = r.warp;
  Block* block = warp->block;
  const BarrierArrival* first = nullptr;
  for (Thread* t : warp->threads) {
    if (!(r.mask & t->bit)) continue;
    auto* arrival = static_cast<BarrierArrival*>(r.arguments[t->lane]);
    first = first ? first : arrival;
    NamedBarrier& b = block->named[arrival->barrier];
    arrival->generation = b.generation;
  }
  NamedBarrier& b = block->named[first->barrier];
  if (b.arrived && b.expected != first->threads) {
    fatal("barrier", r.line,
          format("barrier %d is used here for %u threads and at line %d for %u", first->barrier, first->threads, b.line,
                 b.expected));
  }
  if (b.generation == 0 && b.arrived == 0) b.agent = new_agent(block);
  // threads that had no part in the use before must come after it by other means: else both uses may mix
  const Thread* lowest = warp->threads[u32(__builtin_ctz(r.mask))];
  if (!lowest->clock.seen.covers({b.agent, b.generation})) {
    finding("barrier", r.line,
            format("warp %u comes to barrier %d, which others used at line %d, with nothing to order the two uses",
                   warp->index, first->barrier, b.line),
            lowest);
  }
  b.expected = first->threads;
  b.line = r.line;
  for (Thread* t : warp->threads) {
    if (r.mask & t->bit) b.participants.push_back(t);
  }
  b.arrived += u32(__builtin_popcount(r.mask));
  if (b.expected && b.arrived > b.expected) {
    fatal("barrier", r.line,
          format("%u threads arrive at barrier %d, which is for %u", b.arrived, first->barrier, b.expected));
  }
  if (full(b, block)) release(b);
}

void named_barrier(int barrier, int threads, int line) {
  preemption_point();
  Thread* t = current;
  if (barrier < 0 || barrier > 15) fatal("barrier", line, format("there is no barrier %d: a block has 16", barrier));
  if (threads % 32) fatal("barrier", line, format("barrier for %d threads: not a multiple of 32", threads));
  BarrierArrival arrival{barrier, u32(threads), 0};
  const Lanes who = threads ? Lanes::all : Lanes::not_exited;
  meet(CONVGEN_SITE, threads ? "bar_sync" : "__syncthreads", who, 0, line, &arrival, arrive_named);
  NamedBarrier& b = t->block->named[barrier];
  while (b.generation == arrival.generation) sleep({WaitFor::named_barrier, line, &b, u32(barrier)});
}

// ---- mbarriers -------------------------------------------------------------------------------------------

constexpr u32 mbarrier_bytes = 8;
constexpr u32 most_arrivals = (1 << 20) - 1;
constexpr long long most_bytes = (1 << 20) - 1;

static Mbarrier& find_mbarrier(Block* block, u32 address, int line) {
  check_aligned(address, mbarrier_bytes, "an mbarrier", line);
  const u32 offset = shared_offset(block, address, mbarrier_bytes, "an mbarrier", line);
  const auto found = block->mbarriers.find(offset);
  if (found == block->mbarriers.end()) {
    fatal("barrier", line, format("no mbarrier has been initialized at %s", shared_name(block, offset).c_str()));
  }
  return found->second;
}

static Mbarrier& use_mbarrier(Block* block, u32 address, int line) {
  Mbarrier& b = find_mbarrier(block, address, line);
  if (!current->clock.seen.covers(b.initialized)) {
    finding("race", line,
            format("uses the mbarrier at %s with no synchronization since its initialization at line %d",
                   shared_name(block, b.offset).c_str(), b.line));
  }
  return b;
}

static void complete_if_due(Mbarrier& b) {
  if (b.pending || b.bytes) return;
  b.pending = int(b.arrivals);
  ++b.phase;
  b.completed.join(b.arriving);
  b.completed.seen.raise({b.agent, b.phase});
  note({u32(Did::phase), b.block, 0, b.line, b.block, b.offset, b.phase, 0});
  b.arriving.clear();
  wake_all(b.waiters);
}

static void arrive(Mbarrier& b, const Block* block, long long bytes, int line) {
  Thread* t = current;
  note(Did::arrive, t, line, b);
  b.arriving.join(t->clock);
  tick(t);
  if (b.pending == 0) {
    fatal("barrier", line,
          format("one arrival too many on the mbarrier at %s: phase %u has had all %u and waits for %lld bytes",
                 shared_name(block, b.offset).c_str(), b.phase, b.arrivals, b.bytes));
  }
  --b.pending;
  b.bytes += bytes;
  if (b.bytes > most_bytes) fatal("transaction count", line, format("an mbarrier can't expect %lld bytes", b.bytes));
  complete_if_due(b);
}

// An asynchronous copy has brought `bytes`.
static void bytes_arrive(Mbarrier& b, u32 bytes) {
  b.bytes -= bytes;
  complete_if_due(b);
}

static void wait_parity(u32 address, u32 parity, int line) {
  preemption_point();
  Thread* t = current;
  if (parity > 1) fatal("barrier", line, format("a parity of %u: it is 0 or 1", parity));
  Mbarrier& b = use_mbarrier(t->block, address, line);
  while ((b.phase & 1) == parity) {
    b.waiters.push_back(t);
    sleep({WaitFor::mbarrier, line, &b, parity});
  }
  note(Did::wait, t, line, b, b.phase);
  if (b.phase > b.landed_phase) b.landed_line = 0;
  if (!t->clock.seen.covers({b.agent, b.phase})) t->clock.join(b.completed);
}

// ---- the cluster's barrier -------------------------------------------------------------------------------

// What a relaxed arrival tells of: the blocks that run, the end of the launch before, the barriers that this thread has
// initialized and fenced, and what it has waited for: copies that have landed, and MMAs that have read their operands.
static void arrive_relaxed(const Thread* t, Clock& to) {
  const Cluster* cluster = t->block->cluster;
  const auto tell = [&](Epoch e) {
    if (t->clock.seen.covers(e)) to.seen.raise(e);
  };
  for (auto& block : cluster->blocks) tell({block->start, 1});
  tell({cluster->launch_before, 1});
  for (auto& [offset, b] : t->block->mbarriers)
    if (b.fenced && b.initialized.agent == t->agent) to.seen.raise(b.initialized);
  const auto tell_of = [&](Agent agent) { to.seen.raise({agent, t->clock.seen[agent]}); };
  for (auto& [offset, b] : t->block->mbarriers) tell_of(b.agent);
  if (t->warp->group->has_agent) tell_of(t->warp->group->agent);
}

// The cluster's barrier waits for no thread that has left.
static void complete_cluster(Cluster* cluster) {
  if (!cluster->arrived || cluster->arrived < cluster->alive) return;
  cluster->arrived = 0;
  ++cluster->generation;
  cluster->completed.join(cluster->arriving);
  cluster->arriving.clear();
  wake_all(cluster->waiters);
}

template <bool release>
static void arrive_cluster(Rendezvous& r) {
  Cluster* cluster = r.warp->block->cluster;
  for (Thread* t : r.warp->threads) {
    if (!(r.mask & t->bit)) continue;
    note(Did::cluster_arrive, t, r.line, cluster->generation);
    *static_cast<u32*>(r.arguments[t->lane]) = cluster->generation;
    if (release) {
      t->clock.published.join(t->clock.seen);
      cluster->arriving.join(t->clock);
    } else {
      arrive_relaxed(t, cluster->arriving);
    }
    tick(t);
    ++cluster->arrived;
  }
  complete_cluster(cluster);
}

static void wait_cluster(Rendezvous&) {}

// ---- exit ------------------------------------------------------------------------------------------------

static void check_waited(Thread* t);  // copies.cc

static void thread_exits(Thread* t) {
  has_progressed();
  check_waited(t);
  note(Did::exit, t, 0);
  Block* block = t->block;
  block->exits.join(t->clock.seen);
  t->warp->alive &= ~t->bit;
  --block->alive;
  --block->cluster->alive;
  lanes_exit(t);
  // one that has arrived, and leaves without waiting, counts no more among those that have, nor among those that are to
  if (t->cluster_arrived && t->cluster_generation == block->cluster->generation) --block->cluster->arrived;
  complete_cluster(block->cluster);
  for (auto& [id, b] : block->named) {
    if (!b.expected && full(b, block)) release(b);
  }
}

}  // namespace convgen_emulator

using namespace convgen_emulator;

void __syncthreads(int line) { named_barrier(0, 0, line); }

void __syncwarp(u32 mask, int line) {
  meet(CONVGEN_SITE, "__syncwarp", Lanes::masked, mask & current->warp->lanes, line, nullptr, [](Rendezvous& r) {
    Clock all;
    for (Thread* t : r.warp->threads) {
      if (r.mask & t->bit) all.join(t->clock);
    }
    for (Thread* t : r.warp->threads) {
      if (!(r.mask & t->bit)) continue;
      t->clock = all;
      tick(t);
    }
  });
}

void mbarrier_init(u32 address, u32 arrivals, int line) {
  Thread* t = current;
  Block* block = t->block;
  check_aligned(address, mbarrier_bytes, "an mbarrier", line);
  const u32 offset = shared_offset(block, address, mbarrier_bytes, "an mbarrier", line);
  if (arrivals == 0 || arrivals > most_arrivals) fatal("barrier", line, format("an mbarrier of %u arrivals", arrivals));
  if (block->mbarriers.count(offset)) {
    fatal("barrier", line, format("the mbarrier at %s is initialized twice", shared_name(block, offset).c_str()));
  }
  check_write(block, offset, mbarrier_bytes, OneThread{t}, Proxy::ordinary, {now(t), line}, Content::barrier,
              "puts an mbarrier on");
  Mbarrier& b = block->mbarriers[offset];
  b.block = block->flat;
  b.offset = offset;
  b.line = line;
  b.arrivals = arrivals;
  b.pending = int(arrivals);
  b.agent = new_agent(block);
  b.initialized = now(t);
}

void fence_mbarrier_init(int) {
  for (auto& [offset, b] : current->block->mbarriers) b.fenced |= b.initialized.agent == current->agent;
}

void mbarrier_arrive(u32 address, int line) {
  preemption_point();
  arrive(use_mbarrier(current->block, address, line), current->block, 0, line);
}

void mbarrier_arrive_expect_tx(u32 address, u32 bytes, int line) {
  preemption_point();
  arrive(use_mbarrier(current->block, address, line), current->block, bytes, line);
}

void mbarrier_arrive_cluster(u32 address, u32 rank, int line) {
  preemption_point();
  Block* block = peer(rank, "arrives in", line);
  arrive(use_mbarrier(block, address, line), block, 0, line);
}

void mbarrier_wait_parity(u32 address, u32 parity, int line) { wait_parity(address, parity, line); }

u32 cluster_ctarank() { return current->block->rank; }

void griddepcontrol_wait() { current->clock.seen.raise({current->block->cluster->launch_before, 1}); }

static void arrive_once(const char* what, void (*arrive)(Rendezvous&), int line) {
  preemption_point();
  if (current->cluster_arrived) fatal("barrier", line, format("%s with no cluster_wait since the one before", what));
  current->cluster_arrived = true;
  meet(CONVGEN_SITE, what, Lanes::not_exited, 0, line, &current->cluster_generation, arrive);
}

void cluster_arrive(int line) { arrive_once("cluster_arrive", arrive_cluster<true>, line); }
void cluster_arrive_relaxed(int line) { arrive_once("cluster_arrive_relaxed", arrive_cluster<false>, line); }

void cluster_wait(int line) {
  if (!current->cluster_arrived) fatal("barrier", line, "cluster_wait with no cluster_arrive before");
  current->cluster_arrived = false;
  meet(CONVGEN_SITE, "cluster_wait", Lanes::not_exited, 0, line, nullptr, wait_cluster);
  Thread* t = current;
  Cluster* cluster = t->block->cluster;
  while (cluster->generation == t->cluster_generation) {
    cluster->waiters.push_back(t);
    sleep({WaitFor::cluster_barrier, line, cluster, 0});
  }
  note(Did::cluster_wait, t, line, t->cluster_generation);
  t->clock.join(cluster->completed);
}
