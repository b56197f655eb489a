// Vector clocks: what a thread has seen happen.
//
// Every thread of a cluster is an agent with a count of its releases.  What works asynchronously is an agent
// too: an mbarrier counts its phases, a warpgroup its MMA groups, a thread its copy and store groups.  An
// access is known by its agent and count (its epoch); a thread may rely on it once its clock covers the epoch.
#pragma once

#include <vector>

#include "convgen_emulator.h"

namespace convgen_emulator {

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define CONVGEN_VECTORISED __attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default")))
#else
#define CONVGEN_VECTORISED
#endif

using Agent = u32;

struct Epoch {
  Agent agent = 0;
  u32 count = 0;
};

CONVGEN_VECTORISED
static void take_larger(u32* to, const u32* from, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = to[i] < from[i] ? from[i] : to[i];
}

class Counts {
 public:
  u32 operator[](Agent a) const { return a < counts_.size() ? counts_[a] : 0; }
  bool covers(Epoch e) const { return (*this)[e.agent] >= e.count; }
  void raise(Epoch e) {
    if (e.agent >= counts_.size()) counts_.resize(e.agent + 1);
    if (counts_[e.agent] < e.count) counts_[e.agent] = e.count;
  }
  void join(const Counts& other) {
    if (other.counts_.empty()) return;
    if (other.counts_.size() > counts_.size()) counts_.resize(other.counts_.size());
    take_larger(counts_.data(), other.counts_.data(), other.counts_.size());
  }
  void clear() { counts_.clear(); }
  bool empty() const { return counts_.empty(); }

 private:
  std::vector<u32> counts_;
};

// `seen`: what happened before; `fenced`: the part of it that a proxy fence has made visible to asynchronous
// reads; `published`: the part that a release at the scope of the cluster, or a fence, has made visible to other blocks.  All
// travel along every synchronization.
struct Clock {
  Counts seen, fenced, published;

  void join(const Clock& other) {
    seen.join(other.seen);
    fenced.join(other.fenced);
    published.join(other.published);
  }
  void clear() {
    seen.clear();
    fenced.clear();
    published.clear();
  }
};

}  // namespace convgen_emulator
