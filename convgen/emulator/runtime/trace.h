// What happened, in the order in which it did: recorded where Python asks for it (convgen/emulator/trace.py has the same
// layout and kinds).  Time is Python's to add: here there is none.
#pragma once

#include "launch.h"

namespace convgen_emulator {

enum class Did : u32 {
  start,           // a warp begins
  exit,            // a thread has exited
  load,            // a TMA load is issued, number `value`, of `amount` bytes, for an mbarrier
  landed,          // it has arrived there
  arrive,          // a thread arrives at an mbarrier
  phase,           // an mbarrier has completed phase `value`
  wait,            // a thread has seen phase `value` completed
  sync,            // a thread leaves a named barrier together with those of the same `value`
  store,           // a TMA store of `amount` bytes is issued, in group `value`
  store_wait,      // groups below `value` are stored
  store_read,      // groups below `value` have read shared memory
  multiply,        // a warpgroup has issued a wgmma of n = `amount`, in group `value`
  multiply_wait,   // groups below `value` are multiplied
  mma,             // a warp has multiplied by mma.sync
  copy,            // a cp.async of `amount` bytes is issued, in group `value`
  copy_wait,       // groups below `value` are copied
  cluster_arrive,  // a thread arrives at the cluster's barrier, generation `value`
  cluster_wait,    // and has waited for it
};

struct Event {
  u32 what, block, warp;
  int line;
  u32 on_block, on;  // of an mbarrier: the block that it is in, and its offset in shared memory
  u32 value, amount;
};

// Where events go; those that find no room are counted.
struct Events {
  Event* room;
  u32 capacity, count;
};

}  // namespace convgen_emulator
