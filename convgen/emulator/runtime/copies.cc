// Asynchronous copies: cp.async of a thread, TMA loads and stores of boxes that a tensor map describes.

#include "state.h"

namespace convgen_emulator {

// ---- groups ----------------------------------------------------------------------------------------------

static bool sleeps_for(const Thread* t, WaitFor what, u32 group) {
  return t->wait.what == what && group < t->wait.value;
}

static void commit(Groups& groups) {
  groups.reading.push_back(0);
  groups.writing.push_back(0);
  groups.lines.push_back(0);
}

static void use(Groups& groups, Block* block) {
  if (groups.used) return;
  groups.used = true;
  groups.agent = new_agent(block);
  groups.written = new_agent(block);
}

// How many groups are over once `pending` are left.
static u32 all_but(const Groups& groups, int pending) {
  return groups.committed() > u32(pending) ? groups.committed() - u32(pending) : 0;
}

static void wait_groups(Groups& groups, const std::vector<u32>& counts, int pending, WaitFor what, Did done, int line) {
  const u32 target = all_but(groups, pending);
  if (!target) return;
  while (!groups.done(counts, target)) sleep({what, line, &groups, target});
  note(done, current, line, target);
  if (groups.waited < target) groups.waited = target;
  current->clock.seen.raise({groups.agent, target});
  if (&counts == &groups.writing) current->clock.seen.raise({groups.written, target});
}

// ---- cp.async --------------------------------------------------------------------------------------------

// A thread's copies of one group, of which there are thousands at a time; each lands by itself.
struct CpAsync : Operation {
  struct Copy {
    int line;
    u32 offset, bytes, source_bytes;
    const void* source;
  };
  u32 group;
  std::vector<Copy> copies;

  CpAsync(int line, Block* block, Thread* issuer, u32 group) : Operation(line, block, issuer), group(group) {
    plain = true;
  }
  bool needed() const override { return awaited; }
  // One lands at a time; all of them where nobody runs who could see the difference.
  bool perform() override {
    do land(); while (!copies.empty() && needed());
    Groups& groups = issuer->copies;
    if (needed() && groups.done(groups.writing, issuer->wait.value)) wake(issuer);
    if (!copies.empty()) return false;
    auto own = issuer->copying.begin();
    while (*own != this) ++own;
    issuer->copying.erase(own);
    return true;
  }
  const char* left_over() const override { return "the thread's cp.async is never waited for"; }

 private:
  void land() {
    if (machine->temper.order != Order::newest_first)
      std::swap(copies[machine->random.below(u32(copies.size()))], copies.back());
    const Copy copy = copies.back();
    copies.pop_back();
    u8* to = &block->shared[copy.offset];
    memset(to, 0, copy.bytes);
    memcpy(to, copy.source, copy.source_bytes);
    check_landed(block, copy.offset, copy.bytes, copy.line, Content::ordinary, {issuer->copies.agent, group + 1});
    --issuer->copies.writing[group];
  }
};

static void check_global(const void* address, u64 bytes, bool write, const Epoch* epoch, int line);  // global.cc
static void check_launch_before(const char* what, int line);
static void check_global_proxy(u64 address, u64 bytes, const char* what, int line);
static bool written_in_launch(u64 address);

void cp_async(u32 destination, const void* source, u32 bytes, u32 source_bytes, int line) {
  Thread* t = current;
  Block* block = t->block;
  check_aligned(destination, bytes, "cp.async", line);
  const u32 offset = shared_offset(block, destination, bytes, "cp.async", line);
  if (source_bytes > bytes)
    fatal("out of bounds", line, format("cp.async of %u bytes from a source of %u", bytes, source_bytes));
  use(t->copies, block);
  const u32 group = t->copies.committed();
  const Epoch over{t->copies.agent, group + 1};
  if (source_bytes) {
    if (reinterpret_cast<u64>(source) % bytes)
      fatal("misaligned", line, format("cp.async of %u bytes from %p", bytes, source));
    check_global(source, source_bytes, false, &over, line);
  }
  check_write(block, offset, bytes, OneThread{t}, Proxy::ordinary, {over, line}, Content::in_flight, "copies to");
  memset(&block->shared[offset], 0xff, bytes);  // anything until it lands
  ++t->copies.writing[group];
  if (t->copying.empty() || t->copying.back()->group != group) {
    auto operation = std::make_unique<CpAsync>(line, block, t, group);
    t->copying.push_back(operation.get());
    start(std::move(operation));
  }
  note(Did::copy, t, line, group, bytes);
  has_effect(words(bytes), line);
  t->copying.back()->copies.push_back({line, offset, bytes, source_bytes, source});
}

void cp_async_wait(int pending, int line) {
  const u32 target = all_but(current->copies, pending);
  for (CpAsync* one : current->copying) one->awaited |= one->group < target;
  wait_groups(current->copies, current->copies.writing, pending, WaitFor::cp_async, Did::copy_wait, line);
}

// ---- tensor maps -----------------------------------------------------------------------------------------

// A map resides in parameters, constants or global memory (PTX ISA, "cp.async.bulk.tensor"); plans have parameters alone.
static const Map& find_map(const TensorMap* map, int line) {
  MapHandle handle;
  memcpy(&handle, map, sizeof handle);
  if (handle.magic != map_magic)
    fatal("tensor map", line, "this is no tensor map: a const __grid_constant__ parameter is due");
  for (const TensorMap* own : current->maps) {
    if (own == map) return *handle.map;
  }
  fatal("tensor map", line, "this is a copy of a tensor map: TMA reads a const __grid_constant__ parameter itself");
}

static const Map& find_map(const TensorMap* map, int rank, bool im2col, int line) {
  const Map& m = find_map(map, line);
  if (int(m.rank) != rank || bool(m.im2col) != im2col) {
    fatal("tensor map", line,
          format("a %s copy of rank %d with an %s map of rank %u", im2col ? "im2col" : "tiled", rank,
                 m.im2col ? "im2col" : "tiled", m.rank));
  }
  return m;
}

// The hardware swizzles bits of the absolute address: 16-byte units within a span, by the 128-byte row.
static u32 swizzled(u32 address, u32 span) { return span ? address ^ (address >> 3 & (span - 16)) : address; }

// A box in shared memory: rows of `row_bytes`, one every `pitch` bytes.  Seen on an H200: a swizzled row begins
// every span, however narrow it is, and the bytes between rows are left alone; without a swizzle rows are packed.
struct Box {
  u32 row_bytes, rows, pitch;
  u32 bytes() const { return row_bytes * rows; }  // that move, and that an mbarrier counts
  u32 reach() const { return (rows - 1) * pitch + row_bytes; }
};

static Box box_of(const Map& m) {
  const u32 row_bytes = (m.im2col ? m.channels : m.box[0]) * m.element_bytes;
  u32 rows = m.im2col ? m.pixels : 1;
  for (u32 i = 1; i < m.rank && !m.im2col; ++i) {
    rows *= (m.box[i] + m.element_strides[i] - 1) / m.element_strides[i];
  }
  return {row_bytes, rows, m.swizzle ? m.swizzle : row_bytes};
}

struct Coords {
  int at[5];
  int offset[3];  // of the tap, im2col
};

// Visits the rows of a box in order: visit(row, address of the row's element 0 of dim 0, inside), where `inside`
// tells whether the coordinates beyond dim 0 are in the tensor.
template <class Visit>
static void each_row(const Map& m, const Coords& c, Visit visit) {
  const u32 rows = box_of(m).rows;
  int at[5];
  u32 index[5] = {};
  for (u32 i = 0; i < m.rank; ++i) at[i] = c.at[i];
  for (u32 row = 0; row < rows; ++row) {
    bool inside = true;
    u64 address = m.base;
    for (u32 i = 1; i < m.rank; ++i) {
      const long long position = (long long)at[i] + (m.im2col && i + 1 < m.rank ? c.offset[i - 1] : 0);
      inside = inside && position >= 0 && position < (long long)m.dims[i];
      address += u64(position) * m.strides[i];
    }
    visit(row, address, inside);
    for (u32 i = 1; i < m.rank; ++i) {
      at[i] += int(m.element_strides[i]);
      if (m.im2col) {
        // the walk turns round at the box's upper corner; images have no end
        if (i + 1 == m.rank || at[i] <= int(m.dims[i]) - 1 + m.upper[i - 1]) break;
        at[i] = m.lower[i - 1];
      } else {
        if (++index[i] * m.element_strides[i] < m.box[i]) break;
        index[i] = 0;
        at[i] = c.at[i];
      }
    }
  }
}

// The elements of a row that lie in the tensor: [first, last) of the row's.
struct Columns {
  u32 first, last;
};
static Columns inside_columns(const Map& m, int c0) {
  const long long extent = (long long)m.dims[0], width = m.im2col ? m.channels : m.box[0];
  const auto clip = [&](long long v) { return u32(v < 0 ? 0 : v > width ? width : v); };
  return {clip(-(long long)c0), clip(extent - c0)};
}

constexpr u32 tma_alignment = 128, unit = 16;

static u32 check_box(const Block* block, u32 address, const Box& box, const char* what, int line) {
  check_aligned(address, tma_alignment, what, line);
  return shared_offset(block, address, box.reach(), what, line);
}

// Seen on an H200 for loads, tiled and im2col: any other innermost coordinate is an illegal instruction.
static void check_column(const Map& m, int c0, const char* what, int line) {
  const long long bytes = (long long)c0 * m.element_bytes;
  if (bytes % unit == 0) return;
  fatal("misaligned", line,
        format("%s at innermost coordinate %d, %lld bytes along a row: not a multiple of %u", what, c0, bytes, unit));
}

// Seen on an H200: an im2col load that begins behind the upper corner of the box of legal windows is an illegal
// instruction, and so is taken one that begins before the lower; behind the last image all is fill.  Offsets share
// their bits: 16 along one axis, 8 along each of two, 5 along each of three (cuTensorMapEncodeIm2col).
static void check_start(const Map& m, const Coords& coords, int line) {
  const int bits = m.rank == 3 ? 16 : m.rank == 4 ? 8 : 5;
  for (u32 i = 1; i + 1 < m.rank; ++i) {
    if (coords.offset[i - 1] >> bits) {
      fatal("out of bounds", line,
            format("an im2col load is moved by %d along dim %u: in a tensor of %u dims, offsets have %d bits",
                   int(coords.offset[i - 1]), i, m.rank, bits));
    }
    const int first = m.lower[i - 1], last = int(m.dims[i]) - 1 + m.upper[i - 1];
    if (first <= coords.at[i] && coords.at[i] <= last) continue;
    fatal("out of bounds", line,
          format("an im2col load begins at coordinate %d of dim %u: legal windows begin at %d to %d", coords.at[i], i,
                 first, last));
  }
}

// Visits the bytes of a box, visit(offset, bytes): as a whole where it fills whole swizzled lines of 128 bytes,
// else unit by unit.
template <class Visit>
static void each_stretch(const Block* block, u32 address, const Box& box, u32 span, Visit visit) {
  const bool whole = box.pitch == box.row_bytes && box.bytes() % tma_alignment == 0;
  if (!span || whole) return visit(address - block->base, box.bytes());
  for (u32 row = 0; row < box.rows; ++row) {
    for (u32 i = 0; i < box.row_bytes; i += unit) {
      visit(swizzled(address + row * box.pitch + i, span) - block->base, unit);
    }
  }
}

// ---- TMA loads -------------------------------------------------------------------------------------------

struct TmaLoad : Operation {
  const Map* map;
  Coords coords;
  u32 address, number;
  Mbarrier* barrier;

  using Operation::Operation;
  bool needed() const override { return !barrier->waiters.empty(); }
  bool perform() override {
    const Map& m = *map;
    const Box box = box_of(m);
    const Columns columns = inside_columns(m, coords.at[0]);
    std::vector<u8> row_data(box.row_bytes);
    each_row(m, coords, [&](u32 row, u64 from, bool inside) {
      for (u32 i = 0; i < box.row_bytes; i += m.element_bytes) memcpy(&row_data[i], &m.fill, m.element_bytes);
      if (inside && columns.first < columns.last) {
        const u64 start = from + (long long)(coords.at[0] + int(columns.first)) * m.element_bytes;
        memcpy(&row_data[columns.first * m.element_bytes], reinterpret_cast<const void*>(start),
               (columns.last - columns.first) * m.element_bytes);
      }
      const u32 to = address + row * box.pitch;
      for (u32 i = 0; i < box.row_bytes; i += unit) {
        memcpy(&block->shared[swizzled(to + i, m.swizzle) - block->base], &row_data[i], unit);
      }
    });
    const Epoch epoch{barrier->agent, barrier->phase + 1};
    each_stretch(block, address, box, m.swizzle, [&](u32 offset, u32 bytes) {
      check_landed(block, offset, bytes, line, Content::asynchronous, epoch);
    });
    barrier->landed_line = line;
    barrier->landed_phase = barrier->phase;
    note(Did::landed, issuer, line, *barrier, number);
    bytes_arrive(*barrier, box.bytes());
    return true;
  }
  const char* left_over() const override { return load_not_waited; }
};

// The mbarrier that asynchronous copies are to count on.
static Mbarrier& counting_mbarrier(Block* block, u32 address, int line) {
  Mbarrier& b = use_mbarrier(block, address, line);
  if (!b.fenced && !current->clock.fenced.covers(b.initialized)) {
    finding(
        "proxy fence", line,
        format("completes on the mbarrier at %s, whose initialization at line %d no fence_mbarrier_init has followed",
               shared_name(block, b.offset).c_str(), b.line));
  }
  return b;
}

static void load_into(Block* block, const Map& m, const Coords& coords, u32 destination, u32 barrier, int line) {
  Thread* t = current;
  const Box box = box_of(m);
  check_box(block, destination, box, "a TMA load", line);
  Mbarrier& b = counting_mbarrier(block, barrier, line);
  auto load = std::make_unique<TmaLoad>(line, block, t);
  load->map = &m;
  load->coords = coords;
  load->address = destination;
  load->barrier = &b;
  load->number = ++machine->loads;
  note(Did::load, t, line, b, load->number, box.bytes());
  has_effect(words(box.bytes()), line);
  const Access access{{b.agent, b.phase + 1}, line};
  each_stretch(block, destination, box, m.swizzle, [&](u32 offset, u32 bytes) {
    check_write(block, offset, bytes, OneThread{t}, Proxy::asynchronous, access, Content::in_flight, "loads to");
    memset(&block->shared[offset], 0xff, bytes);  // anything until it lands
  });
  start(std::move(load));
}

void tma_load(u32 destination, const TensorMap* map, u32 barrier, int rank, const int* coords, const u16* offsets,
              u32 blocks, int line) {
  preemption_point();
  Block* block = current->block;
  const Map& m = find_map(map, rank, offsets != nullptr, line);
  check_launch_before("loads from", line);
  check_column(m, coords[0], "a TMA load", line);
  Coords c{};
  for (int i = 0; i < rank; ++i) c.at[i] = coords[i];
  for (int i = 0; offsets && i < rank - 2; ++i) c.offset[i] = offsets[i];
  if (offsets) check_start(m, c, line);
  if (written_in_launch(m.base)) {
    const Columns columns = inside_columns(m, coords[0]);
    each_row(m, c, [&](u32, u64 from, bool inside) {
      if (!inside || columns.first >= columns.last) return;
      from += (long long)(coords[0] + int(columns.first)) * m.element_bytes;
      const u64 bytes = (columns.last - columns.first) * m.element_bytes;
      check_global(reinterpret_cast<const void*>(from), bytes, false, nullptr, line);  // over when it has landed
      check_global_proxy(from, bytes, "loads", line);
    });
  }
  if (!blocks) return load_into(block, m, c, destination, barrier, line);
  auto& all = block->cluster->blocks;
  if (blocks >> all.size())
    fatal("out of bounds", line, format("multicast to 0x%x in a cluster of %zu blocks", blocks, all.size()));
  for (auto& other : all) {
    if (!(blocks >> other->rank & 1)) continue;
    check_runs(other.get(), "multicasts to", line);
    load_into(other.get(), m, c, destination, barrier, line);
  }
}

// ---- st.async --------------------------------------------------------------------------------------------

// A block's shared memory as the others of its cluster name it: above the bits of any address.
constexpr u32 rank_shift = 24;

// The stores that are to count on one mbarrier; each lands by itself.
struct StAsync : Operation {
  struct Store {
    int line;
    u32 offset;
    float v[4];
  };
  Mbarrier* barrier;
  std::vector<Store> stores;

  using Operation::Operation;
  bool needed() const override { return !barrier->waiters.empty(); }
  // One lands at a time; all of them where the block waits.
  bool perform() override {
    do land(); while (!stores.empty() && needed());
    if (!stores.empty()) return false;
    barrier->coming = nullptr;
    return true;
  }
  const char* left_over() const override { return "the block ends without anybody having waited for this store"; }

 private:
  void land() {
    if (machine->temper.order != Order::newest_first)
      std::swap(stores[machine->random.below(u32(stores.size()))], stores.back());
    const Store store = stores.back();
    stores.pop_back();
    if (!block->alive) {
      add_finding("out of bounds", store.line,
                  format("the store lands in block %u of the cluster, which has exited", block->rank), issuer);
    }
    memcpy(&block->shared[store.offset], store.v, sizeof store.v);
    check_landed(block, store.offset, sizeof store.v, store.line, Content::ordinary,
                 {barrier->agent, barrier->phase + 1});
    barrier->landed_line = store.line;
    barrier->landed_phase = barrier->phase;
    bytes_arrive(*barrier, sizeof store.v);
  }
};

// The block that an address of `mapa` is in.
static Block* mapped(u32 remote, int line) {
  auto& blocks = current->block->cluster->blocks;
  const u32 rank = (remote >> rank_shift) - 1;
  if (rank >= blocks.size()) fatal("out of bounds", line, format("mapa has not given the address 0x%x", remote));
  return blocks[rank].get();
}

// ---- TMA stores ------------------------------------------------------------------------------------------

// Bytes of each row that a store writes.  Seen on an H200: whole units, so that up to 15 bytes after the end of the
// tensor's row are written too.
static u32 stored_bytes(const Map& m, int c0) {
  return (inside_columns(m, c0).last * m.element_bytes + unit - 1) / unit * unit;
}

// Seen on an H200: a store that begins before the tensor is an illegal instruction; a load may.
static void check_not_before(const Coords& coords, u32 rank, int line) {
  for (u32 i = 0; i < rank; ++i) {
    if (coords.at[i] >= 0) continue;
    fatal("out of bounds", line, format("a TMA store at coordinate %d of dim %u: none may be negative", coords.at[i], i));
  }
}

struct TmaStore : Operation {
  const Map* map;
  Coords coords;
  u32 address, group;
  std::vector<u8> data;  // once it has read shared memory

  using Operation::Operation;
  bool needed() const override {
    return sleeps_for(issuer, WaitFor::bulk, group) || (data.empty() && sleeps_for(issuer, WaitFor::bulk_read, group));
  }
  bool perform() override {
    const Map& m = *map;
    const Box box = box_of(m);
    Groups& groups = issuer->stores;
    const bool read_now = data.empty();
    if (read_now) {
      data.resize(box.bytes());
      for (u32 i = 0; i < box.bytes(); i += unit) {
        const u32 from = address + i / box.row_bytes * box.pitch + i % box.row_bytes;
        memcpy(&data[i], &block->shared[swizzled(from, m.swizzle) - block->base], unit);
      }
      --groups.reading[group];
    } else {
      const u32 width = stored_bytes(m, coords.at[0]);
      each_row(m, coords, [&](u32 row, u64 to, bool inside) {
        if (!inside) return;
        to += u64(coords.at[0]) * m.element_bytes;
        memcpy(reinterpret_cast<void*>(to), &data[row * box.row_bytes], width);
      });
      --groups.writing[group];
    }
    if (issuer->wait.what == WaitFor::bulk || issuer->wait.what == WaitFor::bulk_read) wake(issuer);
    return !read_now;
  }
  const char* left_over() const override { return nullptr; }  // the issuer's exit tells
};

void tma_store(const TensorMap* map, u32 source, int rank, const int* coords, int line) {
  preemption_point();
  Thread* t = current;
  Block* block = t->block;
  const Map& m = find_map(map, rank, false, line);
  const Box box = box_of(m);
  check_box(block, source, box, "a TMA store", line);
  check_column(m, coords[0], "a TMA store", line);
  use(t->stores, block);
  auto operation = std::make_unique<TmaStore>(line, block, t);
  operation->map = &m;
  for (int i = 0; i < rank; ++i) operation->coords.at[i] = coords[i];
  check_not_before(operation->coords, m.rank, line);
  operation->address = source;
  operation->group = t->stores.committed();
  const Access access{{t->stores.agent, operation->group + 1}, line};
  const Epoch written{t->stores.written, operation->group + 1};
  const u32 width = stored_bytes(m, coords[0]);
  each_row(m, operation->coords, [&](u32 row, u64 to, bool inside) {
    if (!inside || !width) return;
    const u64 first = to + u64(coords[0]) * m.element_bytes;
    check_global_proxy(first, width, "overwrites", line);
    check_global(reinterpret_cast<const void*>(first), width, true, &written, line);
    for (u32 i = 0; i < width; i += unit) {
      const u32 at = swizzled(source + row * box.pitch + i, m.swizzle) - block->base;
      check_read(block, at, unit, OneThread{t}, Proxy::asynchronous, access, "stores from");
    }
  });
  note(Did::store, t, line, operation->group, box.bytes());
  ++t->stores.reading[operation->group];
  ++t->stores.writing[operation->group];
  t->stores.lines[operation->group] = line;
  start(std::move(operation));
}

void bulk_wait(int pending, bool read, int line) {
  Groups& groups = current->stores;
  wait_groups(groups, read ? groups.reading : groups.writing, pending, read ? WaitFor::bulk_read : WaitFor::bulk,
              read ? Did::store_read : Did::store_wait, line);
}

static void check_wgmma_waited(Thread* t);  // wgmma.cc

// What a thread must have waited for before it exits.
static void check_waited(Thread* t) {
  check_wgmma_waited(t);
  const Groups& groups = t->stores;
  for (u32 g = groups.waited; g <= groups.committed(); ++g) {
    if (!groups.lines[g]) continue;
    finding("in flight at exit", groups.lines[g],
            g == groups.committed() ? "the thread exits with this store in no group: nothing can wait for it"
                                    : "the thread exits without waiting until this store has read shared memory");
  }
}

}  // namespace convgen_emulator

using namespace convgen_emulator;

void cp_async_commit_group(int) {
  use(current->copies, current->block);
  commit(current->copies);
}

u32 mapa_shared_cluster(u32 address, u32 rank, int line) {
  block_of_cluster(rank, "maps to", line);
  return (rank + 1) << rank_shift | address;
}

void st_async_v4_f32(u32 remote, u32 remote_barrier, float x, float y, float z, float w, int line) {
  preemption_point();
  Thread* t = current;
  Block* block = mapped(remote, line);
  if (block != mapped(remote_barrier, line))
    fatal("out of bounds", line, "the store and the mbarrier that it counts on are of two blocks");
  check_runs(block, "writes to", line);
  constexpr u32 address_bits = (1 << rank_shift) - 1, bytes = 16;
  const u32 address = remote & address_bits;
  check_aligned(address, bytes, "st.async", line);
  const u32 offset = shared_offset(block, address, bytes, "st.async", line);
  Mbarrier& b = counting_mbarrier(block, remote_barrier & address_bits, line);
  check_write(block, offset, bytes, OneThread{t}, Proxy::ordinary, {{b.agent, b.phase + 1}, line}, Content::in_flight,
              "writes to");
  memset(&block->shared[offset], 0xff, bytes);  // anything until it lands
  if (!b.coming) {
    auto operation = std::make_unique<StAsync>(line, block, t);
    operation->barrier = &b;
    b.coming = operation.get();
    start(std::move(operation));
  }
  has_effect(words(bytes), line);
  b.coming->stores.push_back({line, offset, {x, y, z, w}});
}

void bulk_commit_group(int) {
  preemption_point();
  use(current->stores, current->block);
  commit(current->stores);
}

void prefetch_tensormap(const TensorMap* map, int line) { find_map(map, line); }

namespace convgen_emulator {
void is_parameter(const TensorMap* map) { current->maps.push_back(map); }
}  // namespace convgen_emulator
