// Who wrote each word of global memory last in a launch, and who has read it since: enough to tell accesses that nothing
// orders.
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <initializer_list>
#include <map>
#include <vector>

#include "clock.h"
#include "launch.h"

namespace convgen_emulator {

// Who wrote a word, or has read it.  Packed into 64 bits; 0 is nobody, and whoever does not fit.
struct Writer {
  u32 cluster;
  Epoch epoch;
  u32 bytes;  // of the word's four, a bit each

  static Writer of(u64 packed) {
    return {u32(packed >> 42) - 1, {u32(packed >> 26 & 0xffff), u32(packed >> 4 & 0x3fffff)}, u32(packed & 15)};
  }
  u64 packed() const {
    if (cluster + 1 >= 1u << 22 || epoch.agent >= 1u << 16 || epoch.count >= 1u << 22) return 0;
    return u64(cluster + 1) << 42 | u64(epoch.agent) << 26 | u64(epoch.count) << 4 | bytes;
  }
};

// The epoch of words with which atomic operations have synchronized, or may: any other access to them is in order, too,
// as it may be volatile.
constexpr Epoch flag{0xfffd, 0};

// Reductions (red) go together, whoever does them, and with no other access that is not behind them; so do reads.  Of
// those that one cluster has made to a word since it was written, a set is kept; `agent` and the number of the set are
// their epoch.
class Reductions {
 public:
  static constexpr Agent agent = 0xfffe, of_clusters = 0xffff;  // of one cluster, of several
  static bool are(Epoch e) { return e.agent >= agent; }

  // Whether a thread that has `seen` that comes behind all of a set.
  bool covered(Epoch set, const Counts& seen) const {
    if (set.agent == of_clusters) return false;
    for (const Epoch e : sets_[set.count]) {
      if (!seen.covers(e)) return false;
    }
    return true;
  }
  // Whether the set takes no more: of very many readers, some are enough.
  bool full(Epoch set) const { return sets_[set.count].size() >= 32; }
  // The set with one more, of a thread that has `seen` that, and without those that come before it.
  Epoch joined(const Epoch* set, Epoch one, const Counts& seen) {
    if (set && sets_[set->count][0].agent == one.agent && sets_[set->count][0].count == one.count) return *set;
    const Key key{set ? set->count + 1 : 0, one.agent, one.count};
    const auto [known, fresh] = numbers_.try_emplace(key, u32(sets_.size()));
    if (fresh) {
      std::vector<Epoch> all{one};
      for (u32 i = 0; set && i < sets_[set->count].size(); ++i) {
        if (!seen.covers(sets_[set->count][i])) all.push_back(sets_[set->count][i]);
      }
      sets_.push_back(std::move(all));
    }
    return {agent, known->second};
  }

 private:
  using Key = std::array<u32, 3>;
  std::vector<std::vector<Epoch>> sets_;
  std::map<Key, u32> numbers_;
};

// What threads that had executed a fence made known by atomic operations, by the address of these.  Operations on one
// address continue each other's release sequence: who reads there later knows all of it (PTX ISA, "Release Patterns").
struct Release {
  u32 cluster;
  u32 block;  // to which alone it is known, or `everybody`
  Counts seen;
};
constexpr u32 everybody = ~0u;

class Releases {
 public:
  // Calls known(release) for each of an address, and adds what `own` are.
  template <class Known>
  void meet(u64 address, std::initializer_list<Release> own, Known known) {
    pthread_mutex_lock(&mutex_);
    auto& all = at_[address];
    for (const Release& release : all) known(release);
    for (const Release& release : own) {
      if (!release.seen.empty()) add(all, release);
    }
    pthread_mutex_unlock(&mutex_);
  }

 private:
  static void add(std::vector<Release>& all, const Release& one) {
    for (Release& other : all) {
      if (other.cluster == one.cluster && other.block == one.block) return other.seen.join(one.seen);
    }
    all.push_back(one);
  }
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  std::map<u64, std::vector<Release>> at_;
};

// Of all regions of a request.  Threads of the host share it.
class Written {
 public:
  static constexpr u64 word_bytes = 4;
  Releases releases;

  explicit Written(const Request& request) : regions_(request.region_count) {
    for (u32 i = 0; i < request.region_count; ++i) {
      Words& words = regions_[i];
      if (!request.checks || !request.regions[i].writable) continue;
      words.bytes = (request.regions[i].bytes / word_bytes + 2) * sizeof(u64);
      void* room = mmap(nullptr, 2 * words.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
      if (room == MAP_FAILED) continue;
      words.of = static_cast<std::atomic<u64>*>(room);
      words.readers = words.of + words.bytes / sizeof(u64);
    }
  }
  ~Written() {
    for (Words& words : regions_) {
      if (words.of) munmap(words.of, 2 * words.bytes);
    }
  }
  Written(const Written&) = delete;

  bool known(u32 region) const { return regions_[region].of; }
  bool any(u32 region) const { return regions_[region].any.load(std::memory_order_relaxed); }
  u64 at(u32 region, u64 word) const { return regions_[region].of[word].load(std::memory_order_relaxed); }
  void put(u32 region, u64 word, Writer writer) {
    regions_[region].of[word].store(writer.packed(), std::memory_order_relaxed);
    regions_[region].any.store(true, std::memory_order_relaxed);
  }
  // Those that have read a word since it was written.
  bool any_readers(u32 region) const { return regions_[region].any_readers.load(std::memory_order_relaxed); }
  u64 readers(u32 region, u64 word) const { return regions_[region].readers[word].load(std::memory_order_relaxed); }
  void put_readers(u32 region, u64 word, u64 packed) {
    regions_[region].readers[word].store(packed, std::memory_order_relaxed);
    if (!any_readers(region)) regions_[region].any_readers.store(true, std::memory_order_relaxed);
  }

 private:
  struct Words {
    std::atomic<u64>*of = nullptr, *readers = nullptr;
    u64 bytes = 0;  // of each
    std::atomic<bool> any{false}, any_readers{false};
  };
  std::vector<Words> regions_;
};

}  // namespace convgen_emulator
