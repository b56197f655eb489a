// The machine: threads in warps, warps in warpgroups, warpgroups in blocks, blocks in a cluster, and the
// asynchronous operations that are under way.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "context.h"
#include "launch.h"
#include "random.h"
#include "report.h"
#include "shadow.h"
#include "trace.h"
#include "written.h"

namespace convgen_emulator {

struct Block;
struct Cluster;
struct Thread;
struct Warp;
struct Warpgroup;
struct Accumulators;

constexpr u32 most_shared = 228 << 10;  // bytes of shared memory that a block may have

// ---- waiting ---------------------------------------------------------------------------------------------

enum class WaitFor {
  nothing,
  warp,
  named_barrier,
  cluster_barrier,
  mbarrier,
  cp_async,
  bulk,
  bulk_read,
  wgmma,
  registers
};

// What a thread that sleeps waits for; equal waits are reported together.
struct Wait {
  WaitFor what = WaitFor::nothing;
  int line = 0;
  const void* on = nullptr;
  u32 value = 0;  // a parity, or the number of groups that must be done
};

// ---- barriers --------------------------------------------------------------------------------------------

struct StAsync;  // copies.cc

struct Mbarrier {
  u32 block, offset;  // flat index of its block in the grid; in the block's shared memory
  int line;    // of its initialization
  u32 arrivals;
  Agent agent;
  Epoch initialized;
  bool fenced = false;  // the initialization is visible to asynchronous copies
  int pending;
  long long bytes = 0;  // expected less arrived
  u32 phase = 0;        // phases completed
  Clock arriving, completed;
  std::vector<Thread*> waiters;
  int landed_line = 0;  // of a load in phase `landed_phase` that nobody has waited for yet
  u32 landed_phase = 0;
  StAsync* coming = nullptr;  // stores of other blocks that are on their way
};

struct NamedBarrier {
  u32 expected = 0;  // threads; 0: every thread of the block that has not exited
  u32 arrived = 0;
  u32 generation = 0;
  Agent agent = 0;  // counts the generations
  int line = 0;
  std::vector<Thread*> participants;
};

// Where a kernel executes an instruction: the call, and that of the function around it, which several may call.
struct Site {
  const void* call;
  const void* outer;
  bool operator==(const Site& other) const { return call == other.call && outer == other.outer; }
};
#define CONVGEN_SITE \
  Site { __builtin_return_address(0), __builtin_return_address(1) }

// Lanes of a warp that meet at one instruction.
struct Rendezvous {
  const char* what;
  int line;
  Site site;
  u32 mask, arrived;
  bool aligned, exits_count;
  void (*complete)(Rendezvous&);
  Warp* warp;
  void* arguments[32];
};

// ---- asynchronous operations -----------------------------------------------------------------------------

struct Operation {
  u32 rank = 0;  // the highest goes first where operations go by rank
  int line;
  Block* block;
  Thread* issuer;
  Operation(int line, Block* block, Thread* issuer) : line(line), block(block), issuer(issuer) {}
  // Of a kind of which there are thousands: it is ready, and `awaited` says whether it is needed.  Nothing is called.
  bool plain = false, awaited = false;
  virtual ~Operation() = default;
  bool eligible(bool needed_only) const {
    if (plain) return awaited || !needed_only;
    return ready() && (!needed_only || needed());
  }
  virtual bool ready() const { return true; }  // may happen now
  virtual bool needed() const = 0;             // somebody waits for it
  virtual bool perform() = 0;                  // happens; false: it is not over yet
  virtual const char* left_over() const = 0;   // what is wrong when the block ends before; null: nothing
};

// Copies of one thread in groups: cp.async, or TMA stores.
struct Groups {
  bool used = false;
  Agent agent = 0, written = 0;  // count the groups whose reads are over, and whose writes
  // of each group, the last one open: operations that still read and still write, the line of one
  std::vector<u32> reading{0}, writing{0};
  std::vector<int> lines{0};
  u32 over_reading = 0, over_writing = 0;  // groups before these have neither
  u32 waited = 0;  // groups whose reads the thread has waited for
  u32 committed() const { return u32(reading.size()) - 1; }
  // A group that is committed takes no more: what is over stays over.
  bool done(const std::vector<u32>& counts, u32 groups) {
    u32& over = &counts == &reading ? over_reading : over_writing;
    while (over < groups && !counts[over]) ++over;
    return over >= groups;
  }
};

// ---- the hierarchy ---------------------------------------------------------------------------------------

// Registers of a thread that an MMA has used, accumulators or a, as they were when that was waited for or, if later,
// at the last fence.
struct Ordered {
  const void* registers;
  u32 count, digest;
};

// Registers of a that MMAs under way read.
struct OperandA {
  u32* registers;
  u32 values[4];
  u32 last_group;
  int line;  // of the first of these MMAs
};

struct CpAsync;

struct Thread {
  enum class State : u8 { runnable, asleep, over };

  Place place;
  Context context;
  u32 index, lane, bit;  // in the block, in the warp; 1 << lane
  Block* block;
  Warp* warp;
  Agent agent;
  Clock clock;
  char* stack;
  State state = State::runnable;
  bool slow = false;
  u32 cluster_generation = 0;  // that it has arrived for
  bool cluster_arrived = false;
  bool met = false;  // the rendezvous it sleeps at is complete
  Wait wait;
  Groups copies, stores;
  std::vector<CpAsync*> copying;  // pending, in the order of their groups
  std::vector<Accumulators*> in_flight;
  std::vector<const TensorMap*> maps;  // parameters
  std::vector<OperandA> a_in_flight;
  std::vector<Ordered> ordered;
  std::vector<char> at_fence;  // the stack at the last wgmma_fence; empty where that is not kept
  Counts before_fence;  // what it had seen at the last __threadfence or __threadfence_block
  bool may_touch_global = false;  // the launch before is known to be over
};

struct Warp {
  u32 index;
  Block* block;
  Warpgroup* group;
  std::vector<Thread*> threads;
  u32 lanes;  // that there are
  u32 alive;  // that have not exited
  std::vector<std::unique_ptr<Rendezvous>> open;
  u32 registers, requests = 0;  // of each thread; executed setmaxnreg
  // wgmma: instructions issued, groups committed, whether registers are ordered before the next one
  u32 issued = 0, committed = 0;
  bool fenced = false;
};

struct Multiply;

// A setmaxnreg, which all warps of a warpgroup must execute.
struct RegisterRequest {
  int registers;
  bool increase;
  int line;
};

struct Warpgroup {
  u32 index;
  Block* block;
  std::vector<Warp*> warps;
  std::vector<RegisterRequest> requests;
  bool has_agent = false;
  Agent agent = 0;
  std::deque<Multiply*> issued;  // instructions that not every warp has reached
  u32 first_issued = 0;
  std::vector<u32> outstanding;  // MMAs of each group that have not happened
  u32 awaited = 0;               // a thread sleeps until groups before this one have none
  u32 over = 0;                  // groups before this one have none
  std::vector<std::unique_ptr<Accumulators>> accumulators;
};

struct Block {
  Cluster* cluster;
  u32 rank, flat;  // in the cluster, in the grid
  uint3 index;
  u32 base;     // address of its shared memory
  Agent start;  // has happened once it is known to run
  std::vector<u8> shared;
  Shadow shadow;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::unique_ptr<Warp>> warps;
  std::vector<std::unique_ptr<Warpgroup>> groups;
  std::map<u32, Mbarrier> mbarriers;  // by offset
  std::map<int, NamedBarrier> named;
  u32 alive;
  u32 free_registers = 0;
  std::map<Agent, Access> visits;  // the last access of each thread of another block
  Counts exits;                    // what its threads had seen when they exited

  Block(u32 bytes) : shared(bytes, 0xff), shadow(bytes) {}
};

// What a thread has learnt of another cluster: known to whoever comes behind `epoch`.
struct Acquired {
  Epoch epoch;
  u32 cluster;
  Counts seen;  // by agents of that cluster
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  u32 agents = 0;
  Agent launch_before;  // has happened once that is over
  Reductions reductions;
  std::vector<Acquired> acquired;
  u32 alive = 0;
  u32 arrived = 0, generation = 0;  // of the cluster barrier
  Clock arriving, completed;
  std::vector<Thread*> waiters;
};

// Which of several operations happens first.  Ranks are given at the start: an unlucky operation then waits
// until nothing else can go on, which an even choice each time would hardly ever bring about.
enum class Order : u8 { newest_first, by_rank, any };

// How a seed disturbs time.
struct Temper {
  Order order = Order::newest_first;
  u32 deliver = 0;      // in 1024: an operation happens before anybody needs it
  u32 preempt = 0;      // in 1024: a thread is set aside at a call
  bool starve = false;  // one warpgroup of a block runs only when nothing else can go on
};

struct Work;  // launch.cc

struct Machine {
  const Request* request;
  Report* report;
  Random random;
  Temper temper;
  Context scheduler;
  std::vector<Stack> stacks;
  size_t stacks_used = 0;  // by this launch
  std::vector<Thread*> runnable, slow;  // slow: of the starved warpgroup
  std::vector<std::unique_ptr<Operation>> pending;
  std::unique_ptr<Cluster> cluster;
  u32 calls, accesses, started, steps;  // of this cluster so far: by threads, to global memory, operations, switches
  u32 loads = 0, meetings = 0;   // of the launch so far: TMA loads, named barriers that were left
  u64 own_page = 0;              // of the kernel's own image, where one was read last
  volatile bool stop = false;
  Work* work;
  Written* written;
  u64 idle, effects = 0;  // reads and switches since something was stored or copied, or a thread has ended; how often it was
  // What the cluster's threads have done since an element of global memory was written that nothing in the launch had
  // written, or a thread ended: a word that is stored or copied, 64 products, a load from shared memory are 1.
  u64 repeated, most_repeated;
  struct {
    u64 idle, effects;
    long second;  // of the thread of the host's own time
  } tick = {~0ull, 0, 0};  // since which these have been as they are
};

extern thread_local Machine* machine;
extern thread_local Thread* current;  // null while the scheduler runs

}  // namespace convgen_emulator
