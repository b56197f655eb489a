// Shared memory: loads, stores, and the check of every access against what the shadow knows.

#include "state.h"

namespace convgen_emulator {

// ---- who may rely on what --------------------------------------------------------------------------------

static std::string agent_name(const Cluster* cluster, Agent agent) {
  for (auto& block : cluster->blocks) {
    const Agent first = block->threads[0]->agent;
    if (agent >= first && agent < first + block->threads.size()) {
      return cluster->blocks.size() > 1 ? format("thread %u of block %u", agent - first, block->flat)
                                        : format("thread %u", agent - first);
    }
  }
  return "an asynchronous operation";
}

constexpr const char* scope_of_a_block =
    "at the scope of a block alone: between blocks, cluster_arrive publishes stores";

// What one thread has seen.
struct OneThread {
  const Thread* t;
  bool seen(Epoch e) const { return t->clock.seen.covers(e); }
  bool fenced(Epoch e) const { return t->clock.fenced.covers(e); }
  bool published(Epoch e) const { return t->clock.published.covers(e); }
  u32 rank() const { return t->block->rank; }
};

// What every lane of a warp has seen: an instruction of the whole warp may rely on no more.
struct WholeWarp {
  explicit WholeWarp(const Warp* warp) : warp(warp) {}
  const Warp* warp;
  mutable Epoch seen_known, fenced_known;  // the answers repeat from cell to cell
  bool seen(Epoch e) const {
    if (e.agent == seen_known.agent && e.count <= seen_known.count) return true;
    for (const Thread* t : warp->threads) {
      if (!t->clock.seen.covers(e)) return false;
    }
    seen_known = e;
    return true;
  }
  bool fenced(Epoch e) const {
    if (e.agent == fenced_known.agent && e.count <= fenced_known.count) return true;
    for (const Thread* t : warp->threads) {
      if (!t->clock.fenced.covers(e)) return false;
    }
    fenced_known = e;
    return true;
  }
  bool published(Epoch e) const {
    for (const Thread* t : warp->threads) {
      if (!t->clock.published.covers(e)) return false;
    }
    return true;
  }
  u32 rank() const { return warp->block->rank; }
};

// Whether a thread's write is out of sight for a thread of another block, although that one comes later: what
// ordered them has the scope of a block.
template <class View>
static bool unpublished(const Block* block, Epoch write, const View& view) {
  const auto& blocks = block->cluster->blocks;
  if (blocks.size() == 1) return false;
  const u32 writer = write.agent / u32(block->threads.size());  // threads are the first agents
  return writer < blocks.size() && writer != view.rank() && !view.published(write);
}

// ---- ranges ----------------------------------------------------------------------------------------------

static void check_aligned(u32 address, u32 alignment, const char* what, int line) {
  if (address % alignment == 0) return;
  fatal("misaligned", line,
        format("%s at shared address 0x%x, which is not a multiple of %u", what, address, alignment));
}

// The offset of an address in a block's shared memory, all of whose `bytes` must be inside.
static u32 shared_offset(const Block* block, u32 address, u32 bytes, const char* what, int line) {
  const u32 size = u32(block->shared.size());
  const u32 offset = address - block->base;
  if (address >= block->base && offset <= size && bytes <= size - offset) return offset;
  const long long from = (long long)address - block->base;
  fatal("out of bounds", line,
        format("%s of %u bytes at shared_memory%+lld; the block has %u bytes", what, bytes, from, size));
}

// ---- the rules -------------------------------------------------------------------------------------------

enum class Proxy { ordinary, asynchronous };

// What nothing has written is a NaN.  An MMA may read it: the rows or columns of the result that it spoils are none
// that a right kernel stores.
enum class Unwritten { wrong, allowed };

template <class View>
static void read_cell(Cell& cell, const Block* block, u32 offset, const View& view, Proxy proxy, const Access& access,
                      const char* what, Unwritten unwritten) {
  const auto where = [&] { return shared_name(block, offset); };
  switch (cell.content) {
    case Content::nothing:
      if (unwritten == Unwritten::allowed) break;
      finding("uninitialized", access.line, format("%s %s, which nothing has written", what, where().c_str()));
      break;
    case Content::barrier:
      finding("barrier", access.line, format("%s %s, which holds an mbarrier", what, where().c_str()));
      break;
    case Content::in_flight:
      finding(
          "in flight", access.line,
          format("%s %s while the copy of line %d is still on its way there", what, where().c_str(), cell.write.line));
      break;
    case Content::asynchronous:
      if (!view.seen(cell.write.epoch)) {
        finding("race", access.line,
                format("%s %s, where the copy of line %d has landed, without having waited for it", what,
                       where().c_str(), cell.write.line));
      }
      break;
    case Content::ordinary:
      if (!view.seen(cell.write.epoch)) {
        finding("race", access.line,
                format("%s %s, which %s wrote at line %d, with no synchronization between", what, where().c_str(),
                       agent_name(block->cluster, cell.write.epoch.agent).c_str(), cell.write.line));
      } else if (unpublished(block, cell.write.epoch, view)) {
        finding("race", access.line,
                format("%s %s, which %s wrote at line %d and published %s", what, where().c_str(),
                       agent_name(block->cluster, cell.write.epoch.agent).c_str(), cell.write.line, scope_of_a_block));
      } else if (proxy == Proxy::asynchronous && !view.fenced(cell.write.epoch)) {
        finding("proxy fence", access.line,
                format("%s %s, which %s wrote at line %d, with no fence_proxy_async_shared between", what,
                       where().c_str(), agent_name(block->cluster, cell.write.epoch.agent).c_str(), cell.write.line));
      }
      break;
    case Content::split: break;
  }
  cell.readers.add(access, [&](Epoch e) { return view.seen(e); });
}

template <class View>
static void write_cell(Cell& cell, const Block* block, u32 offset, const View& view, Proxy proxy, const Access& access,
                       Content content, const char* what) {
  const auto where = [&] { return shared_name(block, offset); };
  if (cell.content == Content::barrier) {
    finding("barrier", access.line, format("%s %s, which holds an mbarrier", what, where().c_str()));
    return;
  }
  if (cell.content == Content::in_flight) {
    finding("in flight", access.line,
            format("%s %s while the copy of line %d is on its way there", what, where().c_str(), cell.write.line));
  } else if (cell.content != Content::nothing && !view.seen(cell.write.epoch)) {
    finding(
        "race", access.line,
        format("%s %s, which line %d wrote, with no synchronization between", what, where().c_str(), cell.write.line));
  } else if (cell.content == Content::ordinary && unpublished(block, cell.write.epoch, view) &&
             !cell.readers.any_but(cell.write.epoch.agent)) {
    // (a store that another has read since is done: what comes after that read comes after the store)
    finding("race", access.line,
            format("%s %s, which line %d wrote and published %s", what, where().c_str(), cell.write.line,
                   scope_of_a_block));
  } else if (cell.content == Content::ordinary && proxy == Proxy::asynchronous && !view.fenced(cell.write.epoch)) {
    finding("proxy fence", access.line,
            format("%s %s, which line %d wrote, with no fence_proxy_async_shared between", what, where().c_str(),
                   cell.write.line));
  }
  if (const Access* reader = cell.readers.find_uncovered([&](Epoch e) { return view.seen(e); })) {
    finding("overwritten while read", access.line,
            format("%s %s, which line %d may still be reading", what, where().c_str(), reader->line));
  }
  cell.content = content;
  cell.write = access;
  cell.readers.clear();
}

template <class View>
static void check_read(Block* block, u32 offset, u32 bytes, const View& view, Proxy proxy, const Access& access,
                       const char* what, Unwritten unwritten = Unwritten::wrong) {
  if (!machine->request->checks) return;
  block->shadow.each(offset, bytes,
                     [&](Cell& cell, u32 at) { read_cell(cell, block, at, view, proxy, access, what, unwritten); });
}

template <class View>
static void check_write(Block* block, u32 offset, u32 bytes, const View& view, Proxy proxy, const Access& access,
                        Content content, const char* what) {
  if (!machine->request->checks) return;
  block->shadow.each(
      offset, bytes, [&](Cell& cell, u32 at) { write_cell(cell, block, at, view, proxy, access, content, what); });
}

// What was on its way has landed: from now on `epoch` tells who may read it.
static void check_landed(Block* block, u32 offset, u32 bytes, int line, Content content, Epoch epoch) {
  if (!machine->request->checks) return;
  block->shadow.each(offset, bytes, [&](Cell& cell, u32) {
    if (cell.content != Content::in_flight || cell.write.line != line) return;
    cell.content = content;
    cell.write.epoch = epoch;
  });
}

// ---- ordinary loads and stores ---------------------------------------------------------------------------

static void check_runs(const Block* block, const char* what, int line) {
  if (!block->alive)
    fatal("out of bounds", line, format("%s block %u of the cluster, which has exited", what, block->rank));
  if (current->clock.seen.covers({block->start, 1})) return;
  finding("out of bounds", line, format("%s block %u of the cluster, which need not have started", what, block->rank));
}

static Block* block_of_cluster(u32 rank, const char* what, int line) {
  auto& blocks = current->block->cluster->blocks;
  if (rank >= blocks.size())
    fatal("out of bounds", line, format("%s block %u of a cluster of %zu", what, rank, blocks.size()));
  return blocks[rank].get();
}

// The block of this cluster whose shared memory (or barrier) is meant.
static Block* peer(u32 rank, const char* what, int line) {
  Block* block = block_of_cluster(rank, what, line);
  check_runs(block, what, line);
  if (block != current->block) block->visits[current->agent] = {now(current), line};
  return block;
}

static void load(u32 address, void* to, u32 bytes, int line) {
  Thread* t = current;
  if (idles(1) || repeats(1)) does_not_end(line);
  Block* block = t->block;
  check_aligned(address, bytes, "a load", line);
  const u32 offset = shared_offset(block, address, bytes, "a load", line);
  check_read(block, offset, bytes, OneThread{t}, Proxy::ordinary, {now(t), line}, "reads");
  memcpy(to, &block->shared[offset], bytes);
}

static void store(Block* block, u32 address, const void* from, u32 bytes, int line) {
  Thread* t = current;
  has_effect(words(bytes), line);
  check_aligned(address, bytes, "a store", line);
  const u32 offset = shared_offset(block, address, bytes, "a store", line);
  check_write(block, offset, bytes, OneThread{t}, Proxy::ordinary, {now(t), line}, Content::ordinary, "writes");
  memcpy(&block->shared[offset], from, bytes);
}

static void store(u32 address, const void* from, u32 bytes, int line) {
  store(current->block, address, from, bytes, line);
}

}  // namespace convgen_emulator

using namespace convgen_emulator;

// What kernels declare: its address stands for the block's memory, which lies elsewhere.
__attribute__((visibility("default"))) alignas(1024) u8 shared_memory[convgen_emulator::most_shared];

struct alignas(8) Vec2 {
  float x, y;
};
struct alignas(16) Vec4 {
  u32 x, y, z, w;
};

u32 shared_address_at(long long offset, int line) {
  const Block* block = current->block;
  if (offset < 0 || u64(offset) > block->shared.size()) {
    fatal("out of bounds", line, "the shared address of what is not in the block's shared memory");
  }
  return block->base + u32(offset);
}

u8 ld_shared_u8(u32 address, int line) {
  u8 v;
  load(address, &v, 1, line);
  return v;
}

u16 ld_shared_u16(u32 address, int line) {
  u16 v;
  load(address, &v, 2, line);
  return v;
}

u32 ld_shared_u32(u32 address, int line) {
  u32 v;
  load(address, &v, 4, line);
  return v;
}

u64 ld_shared_u64(u32 address, int line) {
  u64 v;
  load(address, &v, 8, line);
  return v;
}

Vec4 ld_shared_v4_u32(u32 address, int line) {
  Vec4 v;
  load(address, &v, 16, line);
  return v;
}

Vec2 ld_shared_v2_f32(u32 address, int line) {
  Vec2 v;
  load(address, &v, 8, line);
  return v;
}
void ld_shared_v4_f32(float (&v)[4], u32 address, int line) { load(address, v, 16, line); }

void st_shared_u8(u32 address, u8 v, int line) { store(address, &v, 1, line); }
void st_shared_u16(u32 address, u16 v, int line) { store(address, &v, 2, line); }
void st_shared_u32(u32 address, u32 v, int line) { store(address, &v, 4, line); }
void st_shared_u64(u32 address, u64 v, int line) { store(address, &v, 8, line); }
void st_shared_v4_u32(u32 address, Vec4 v, int line) { store(address, &v, 16, line); }
void st_shared_v2_u32(u32 address, u32 x, u32 y, int line) {
  const u32 v[2] = {x, y};
  store(address, v, 8, line);
}

void st_shared_cluster_v4_f32(u32 address, u32 rank, float x, float y, float z, float w, int line) {
  const float v[4] = {x, y, z, w};
  store(peer(rank, "writes to", line), address, v, 16, line);
}

void fence_proxy_async_shared(int) {
  current->clock.fenced.join(current->clock.seen);
  tick(current);  // what it writes from here on wants another fence
}
