// wgmma: the MMAs of a warpgroup.  Operands are read, and accumulators written, when the MMA happens: at the
// latest when its group is waited for.  Until then a thread's accumulators hold a NaN.

#include "numbers.h"
#include "state.h"

namespace convgen_emulator {

constexpr u32 rows_of_warp = 16, rows_of_group = 64;
constexpr u32 poison = 0x7fffbad0;  // a NaN; a large number where accumulators are integers

// The accumulators of one warpgroup while MMAs on them are under way.
struct Accumulators {
  int n;
  int line;                     // of the last MMA on them
  u32 last_group;               // that uses them
  std::vector<u32> bits;        // 64 x n, row by row
  void* d[128] = {};            // each thread's part
  u32 holders = 0;              // threads that have not taken theirs back
  std::deque<Multiply*> queue;  // MMAs on them that have not happened
};

// Element i of a thread's accumulators.
static u32 accumulator_row(u32 thread, u32 i) { return thread / 32 * rows_of_warp + thread % 32 / 4 + i / 2 % 2 * 8; }
static u32 accumulator_column(u32 thread, u32 i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

static u32 digest(const void* d, u32 count) {
  u32 h = 2166136261u, word;
  for (u32 i = 0; i < count; ++i) {
    memcpy(&word, static_cast<const u32*>(d) + i, 4);
    h = (h ^ word) * 16777619u;
  }
  return h;
}

// ---- operands in shared memory ---------------------------------------------------------------------------

// PTX ISA, "Matrix Descriptor Format".
struct Descriptor {
  u32 start, leading, stride, span;
  explicit Descriptor(u64 bits)
      : start(u32(bits & 0x3fff) << 4), leading(u32(bits >> 16 & 0x3fff) << 4), stride(u32(bits >> 32 & 0x3fff) << 4) {
    constexpr u32 spans[] = {0, 128, 64, 32};
    span = spans[bits >> 62];
  }
};

// An operand: `rows` along m or n, 32 bytes along k.  Visits its 16-byte units, visit(address, row, k): the
// place of the unit's first element; the others follow along k, or along the rows where `major` is set
// (PTX ISA, "Strides" of canonical layouts).
template <class Visit>
static void each_unit(const Descriptor& d, u32 first_row, u32 rows, Type type, bool major, Visit visit) {
  const u32 per = unit / u32(element_bytes(type));
  if (!major) {
    const u32 pitch = d.span ? d.span : unit, next = d.span ? unit : d.leading;
    for (u32 row = first_row; row < first_row + rows; ++row) {
      for (u32 chunk = 0; chunk < 2; ++chunk) {
        visit(swizzled(d.start + row % 8 * pitch + row / 8 * d.stride + chunk * next, d.span), row, chunk * per);
      }
    }
    return;
  }
  const u32 chunks = d.span ? d.span / unit : 1, pitch = d.span ? d.span : unit;
  const u32 row_step = d.span ? d.leading : d.stride, k_step = d.span ? d.stride : d.leading;
  for (u32 chunk = first_row / per; chunk < (first_row + rows + per - 1) / per; ++chunk) {
    for (u32 k = 0; k < 2 * per; ++k) {
      const u32 at = chunk % chunks * unit + chunk / chunks * row_step + k % 8 * pitch + k / 8 * k_step;
      visit(swizzled(d.start + at, d.span), chunk * per, k);
    }
  }
}

// ---- the operation ---------------------------------------------------------------------------------------

struct Multiply : Operation {
  Wgmma shape;
  u64 a, b;
  bool accumulate, from_registers;
  u32 group, arrived = 0;  // warps
  Warpgroup* warpgroup;
  Accumulators* accumulators = nullptr;
  u32 a_registers[128][4];  // of each thread, where a is in registers

  using Operation::Operation;
  bool ready() const override { return arrived == warpgroup->warps.size() && accumulators->queue.front() == this; }
  bool needed() const override { return group < warpgroup->awaited; }
  bool perform() override;
  const char* left_over() const override {
    return "the block ends while this MMA is under way: nobody has waited for it";
  }

  u32 a_bytes() const { return u32(element_bytes(shape.a_type)); }
};

// d (rows x n) += a (rows x k) b (k x n).
CONVGEN_VECTORISED
static void multiply_add(const float* a, const float* b, float* d, int rows, int n, int k) {
  for (int row = 0; row < rows; ++row, a += k, d += n) {
    for (int kk = 0; kk < k; ++kk) {
      const float factor = a[kk];
      const float* from = b + kk * n;
      for (int column = 0; column < n; ++column) d[column] += factor * from[column];
    }
  }
}

bool Multiply::perform() {
  const int n = shape.n, k = shape.k;
  std::vector<float> a_values(rows_of_group * k), b_values(k * n);
  const auto expand = [&](u64 bits, u32 rows, Type type, bool major, float* to, int row_step, int k_step) {
    const int per = int(unit) / element_bytes(type);
    each_unit(Descriptor(bits), 0, rows, type, major, [&](u32 address, u32 row, u32 kk) {
      const u32 count = major ? (rows - row < u32(per) ? rows - row : u32(per)) : u32(per);
      decoder().expand(type, &block->shared[address - block->base], int(count), to + row * row_step + kk * k_step,
                       major ? row_step : k_step);
    });
  };
  if (from_registers) {
    const int per = 4 / element_bytes(shape.a_type);
    for (int thread = 0; thread < 128; ++thread) {
      for (int j = 0; j < 4; ++j) {
        const FragmentPlace at = fragment_place(thread % 32, j, per);
        const int row = thread / 32 * int(rows_of_warp) + at.row;
        decoder().expand(shape.a_type, reinterpret_cast<const u8*>(&a_registers[thread][j]), per, &a_values[row * k + at.k], 1);
      }
    }
  } else {
    expand(a, rows_of_group, shape.a_type, shape.a_major, a_values.data(), k, 1);
  }
  expand(b, u32(n), shape.b_type, shape.b_major, b_values.data(), 1, n);
  u32* bits = accumulators->bits.data();
  const size_t count = accumulators->bits.size();
  if (!accumulate) memset(bits, 0, 4 * count);
  if (shape.a_type == Type::s8) {
    std::vector<float> sums(count);  // exact: 32 products below 2^15
    multiply_add(a_values.data(), b_values.data(), sums.data(), rows_of_group, n, k);
    for (size_t i = 0; i < count; ++i) bits[i] += u32(int(sums[i]));
  } else {
    multiply_add(a_values.data(), b_values.data(), reinterpret_cast<float*>(bits), rows_of_group, n, k);
  }
  accumulators->queue.pop_front();
  --warpgroup->outstanding[group];
  warpgroup->awaited = 0;
  for (Warp* w : warpgroup->warps) {
    for (Thread* t : w->threads) {
      if (t->wait.what == WaitFor::wgmma) wake(t);
    }
  }
  return true;
}

// ---- issue -----------------------------------------------------------------------------------------------

struct WarpMultiply {
  Wgmma shape;
  void* d;
  u32* registers;
  u64 a, b;
  u32 accumulate;
};

static bool same_shape(const Wgmma& a, const Wgmma& b) {
  return a.n == b.n && a.k == b.k && a.a_type == b.a_type && a.b_type == b.b_type && a.a_major == b.a_major &&
         a.b_major == b.b_major;
}

static Accumulators* find_in_flight(const Thread* t, const void* d) {
  for (Accumulators* a : t->in_flight) {
    if (a->d[t->index % 128] == d) return a;
  }
  return nullptr;
}

// A thread's accumulators enter: their values are kept aside and a NaN stands in their place.
static void enter(Accumulators* accumulators, Thread* t, void* d, bool accumulate) {
  const u32 thread = t->index % 128, n = u32(accumulators->n);
  u32* mine = static_cast<u32*>(d);
  for (u32 i = 0; i < n / 2; ++i) {
    if (accumulate) accumulators->bits[accumulator_row(thread, i) * n + accumulator_column(thread, i)] = mine[i];
    mine[i] = poison;
  }
  accumulators->d[thread] = d;
  ++accumulators->holders;
  t->in_flight.push_back(accumulators);
}

// Whether registers still hold the NaN of those that MMAs use.
static bool poisoned(const void* registers, u32 count) {
  for (u32 i = 0; i < count; ++i) {
    if (static_cast<const u32*>(registers)[i] != poison) return false;
  }
  return true;
}

static Ordered* find_ordered(Thread* t, const void* registers) {
  for (Ordered& o : t->ordered) {
    if (o.registers == registers) return &o;
  }
  return nullptr;
}

// Registers are ordered before later MMAs as they are now.
static void order(Thread* t, const void* registers, u32 count) {
  if (Ordered* known = find_ordered(t, registers)) {
    *known = {registers, count, digest(registers, count)};
  } else {
    t->ordered.push_back({registers, count, digest(registers, count)});
  }
}

// What a variable holds that nothing has been assigned to (-ftrivial-auto-var-init=pattern): gcc's, clang's of integers
// and of floats.
static bool unassigned(const u32* words, u32 count) {
  if (*words != 0xfefefefe && *words != 0xaaaaaaaa && *words != 0xffffffff) return false;
  return memcmp(words, words + 1, 4 * (count - 1)) == 0;
}

// Whether a thread has written registers since the fence, at which its stack, down from the top, was as `at_fence` says.
static bool written_since_fence(const Thread* t, const void* registers, u32 count) {
  const size_t depth = u64(t->stack) + Stack::bytes - u64(registers), known = t->at_fence.size();
  if (!known || depth > Stack::bytes || unassigned(static_cast<const u32*>(registers), count)) return false;
  return depth > known || memcmp(registers, &t->at_fence[known - depth], 4 * count) != 0;
}

// Registers are ordered before an MMA by wgmma.fence: an MMA on accumulators that it begins anew, or on registers
// that the thread has changed since the last fence or wait, needs one (PTX ISA, "wgmma.fence").
static void check_register_fence(Thread* t, const void* registers, u32 count, bool anew, const char* what, int line) {
  const Ordered* known = find_ordered(t, registers);
  const bool same = known ? digest(registers, count) == known->digest : !written_since_fence(t, registers, count);
  if (same && (t->warp->fenced || (known && !anew))) return;
  finding("wgmma fence", line, format("%s an MMA with no wgmma_fence since the thread had them", what), t);
}

// A thread's registers of a enter, or go on to another MMA: until both are over a NaN stands in their place, too.
static void enter_a(Multiply* op, Thread* t, u32* registers) {
  OperandA* held = nullptr;
  for (OperandA& other : t->a_in_flight) {
    if (other.registers == registers) held = &other;
  }
  if (!held) {
    check_register_fence(t, registers, 4, false, "registers of a go into", op->line);
    t->a_in_flight.push_back({registers, {}, 0, op->line});
    held = &t->a_in_flight.back();
    for (u32& value : held->values) value = std::exchange(*registers++, poison);
  }
  held->last_group = op->group;
  memcpy(op->a_registers[t->index % 128], held->values, sizeof held->values);
}

static void check_operand(const Multiply* op, Warp* warp, u64 bits, u32 first_row, u32 rows, Type type, bool major,
                          const char* what) {
  if (bits >> 49 & 7)
    fatal("descriptor", op->line, format("the descriptor of %s has a base offset, which is not emulated", what));
  const Descriptor d(bits);
  Block* block = warp->block;
  const Access access{{warp->group->agent, op->group + 1}, op->line};
  const WholeWarp view{warp};
  each_unit(d, first_row, rows, type, major, [&](u32 address, u32, u32) {
    const u32 offset = address - block->base;
    if (address < block->base || offset + unit > block->shared.size()) {
      fatal("descriptor", op->line,
            format("%s reaches 0x%x, outside of shared memory: start 0x%x, leading offset %u, stride %u, swizzle %u",
                   what, address, d.start, d.leading, d.stride, d.span));
    }
    check_read(block, offset, unit, view, Proxy::asynchronous, access, what, Unwritten::allowed);
  });
}

static void issue(Rendezvous& r) {
  Warp* warp = r.warp;
  Warpgroup* group = warp->group;
  Block* block = warp->block;
  const u32 rank = warp->index % 4;
  const auto& first = *static_cast<WarpMultiply*>(r.arguments[0]);
  if (group->warps.size() != 4 || warp->lanes != 0xffffffff)
    fatal("divergence", r.line, "wgmma in a warpgroup of fewer than 128 threads");
  for (Thread* t : warp->threads) {
    const auto& mine = *static_cast<WarpMultiply*>(r.arguments[t->lane]);
    if (mine.a != first.a || mine.b != first.b || !mine.accumulate != !first.accumulate) {
      fatal("divergence", r.line, format("lanes 0 and %u of the warp give different operands", t->lane));
    }
  }
  if (!group->has_agent) {
    group->has_agent = true;
    group->agent = new_agent(block);
  }
  if (group->outstanding.size() <= warp->committed) group->outstanding.resize(warp->committed + 1);

  // the first warp to come makes the operation, the others join it
  const u32 index = warp->issued++ - group->first_issued;
  if (index == group->issued.size()) {
    auto made = std::make_unique<Multiply>(r.line, block, warp->threads[0]);
    made->shape = first.shape;
    made->a = first.a;
    made->b = first.b;
    made->accumulate = first.accumulate != 0;
    made->from_registers = first.registers != nullptr;
    made->group = warp->committed;
    made->warpgroup = group;
    ++group->outstanding[made->group];
    group->issued.push_back(made.get());
    start(std::move(made));
  }
  Multiply* op = group->issued[index];
  if (op->line != r.line || !same_shape(op->shape, first.shape) || op->a != first.a || op->b != first.b ||
      op->accumulate != (first.accumulate != 0)) {
    fatal("divergence", r.line,
          format("the warpgroup's warps issue different MMAs: warp %u this one, another that of line %d", warp->index,
                 op->line));
  }
  if (op->group != warp->committed)
    fatal("divergence", r.line, "the warpgroup's warps put this MMA into different groups");

  for (Thread* t : warp->threads) {
    const auto& mine = *static_cast<WarpMultiply*>(r.arguments[t->lane]);
    Accumulators* known = find_in_flight(t, mine.d);
    if (!op->accumulators) {
      if (known) {
        op->accumulators = known;
      } else {
        auto fresh = std::make_unique<Accumulators>();
        fresh->n = op->shape.n;
        fresh->bits.resize(rows_of_group * u32(fresh->n));
        op->accumulators = fresh.get();
        group->accumulators.push_back(std::move(fresh));
      }
      if (op->accumulators->n != op->shape.n) {
        fatal("divergence", r.line,
              format("n=%d on accumulators that an MMA of n=%d still uses", op->shape.n, op->accumulators->n));
      }
      op->accumulators->queue.push_back(op);
      op->accumulators->last_group = op->group;
      op->accumulators->line = op->line;
    }
    if (!known) {
      check_register_fence(t, mine.d, u32(op->shape.n) / 2, !mine.accumulate, "accumulators go into", r.line);
      enter(op->accumulators, t, mine.d, op->accumulate);
    } else if (known != op->accumulators) {
      fatal("divergence", r.line, format("thread %u gives other accumulators than its warpgroup", t->index));
    }
    if (op->from_registers) enter_a(op, t, mine.registers);
  }
  if (!op->from_registers)
    check_operand(op, warp, op->a, rank * rows_of_warp, rows_of_warp, op->shape.a_type, op->shape.a_major,
                  "a is read from");
  check_operand(op, warp, op->b, 0, u32(op->shape.n), op->shape.b_type, op->shape.b_major, "b is read from");
  if (++op->arrived == 4) {
    note(Did::multiply, warp->group->warps[0]->threads[0], r.line, op->group, u32(op->shape.n));
    has_effect(u64(rows_of_group) * u64(op->shape.n * op->shape.k) / products_of_a_word, r.line);
    group->issued.pop_front();
    ++group->first_issued;
  }
}

void wgmma(const Wgmma& shape, void* d, const u32* registers, u64 a, u64 b, u32 accumulate, int line) {
  WarpMultiply arguments{shape, d, const_cast<u32*>(registers), a, b, accumulate};
  meet(CONVGEN_SITE, "wgmma", Lanes::all, 0, line, &arguments, issue);
}

// ---- wait ------------------------------------------------------------------------------------------------

// Gives a thread its accumulators back, if no group under way uses them.
static void take_back(Thread* t, u32 groups_done) {
  for (size_t i = 0; i < t->in_flight.size();) {
    Accumulators* a = t->in_flight[i];
    if (a->last_group >= groups_done) {
      ++i;
      continue;
    }
    const u32 thread = t->index % 128, n = u32(a->n), count = n / 2;
    u32* mine = static_cast<u32*>(a->d[thread]);
    if (!poisoned(mine, count)) {
      finding("in flight", current->wait.line, "the thread wrote accumulators while an MMA on them was under way");
    } else {
      for (u32 e = 0; e < count; ++e) mine[e] = a->bits[accumulator_row(thread, e) * n + accumulator_column(thread, e)];
    }
    order(t, mine, count);
    t->in_flight[i] = t->in_flight.back();
    t->in_flight.pop_back();
    --a->holders;
  }
}

// The same with registers of a.
static void take_back_a(Thread* t, u32 groups_done) {
  auto& all = t->a_in_flight;
  for (size_t i = 0; i < all.size();) {
    const OperandA& held = all[i];
    if (held.last_group >= groups_done) {
      ++i;
      continue;
    }
    if (!poisoned(held.registers, 4)) {
      finding("in flight", held.line, "registers of a changed while the MMA was under way (they must live until the wait)");
    } else {
      memcpy(held.registers, held.values, sizeof held.values);
    }
    order(t, held.registers, 4);
    all[i] = all.back();
    all.pop_back();
  }
}

static void drop_unheld(Warpgroup* group) {
  auto& all = group->accumulators;
  for (size_t i = 0; i < all.size();) {
    if (all[i]->holders == 0 && all[i]->queue.empty()) {
      std::swap(all[i], all.back());
      all.pop_back();
    } else {
      ++i;
    }
  }
}

void wgmma_wait(int pending, int line) {
  meet(CONVGEN_SITE, "wgmma_wait_group", Lanes::all, 0, line, nullptr, [](Rendezvous&) {});
  Thread* t = current;
  Warp* warp = t->warp;
  Warpgroup* group = warp->group;
  if (warp->committed <= u32(pending)) return;
  const u32 target = warp->committed - u32(pending);
  // a warp that has committed a group has issued its MMAs, so that none is outstanding again
  const auto done = [&] {
    while (group->over < target && !group->outstanding[group->over]) ++group->over;
    return group->over >= target;
  };
  while (!done()) {
    if (group->awaited < target) group->awaited = target;
    sleep({WaitFor::wgmma, line, group, target});
  }
  note(Did::multiply_wait, t, line, target);
  t->wait.line = line;
  take_back(t, target);
  take_back_a(t, target);
  if (group->has_agent) t->clock.seen.raise({group->agent, target});
  if (t->in_flight.empty()) warp->fenced = false;
  drop_unheld(group);
}

static void check_wgmma_waited(Thread* t) {
  if (!t->in_flight.empty()) {
    finding("in flight at exit", t->in_flight[0]->line, "the thread exits without waiting for its MMAs");
  }
}

}  // namespace convgen_emulator

using namespace convgen_emulator;

void wgmma_fence(int line) {
  meet(CONVGEN_SITE, "wgmma_fence", Lanes::all, 0, line, nullptr, [](Rendezvous& r) {
    r.warp->fenced = true;
    for (Thread* t : r.warp->threads) {
      for (Ordered& o : t->ordered) o.digest = digest(o.registers, o.count);
    }
  });
  current->at_fence.clear();
  if (!current->in_flight.empty()) return;  // in a loop, whose registers are known: this saves time
  const char *from = static_cast<const char*>(__builtin_frame_address(0)), *top = current->stack + Stack::bytes;
  current->at_fence.assign(from, top);
}

void wgmma_commit_group(int line) {
  meet(CONVGEN_SITE, "wgmma_commit_group", Lanes::all, 0, line, nullptr, [](Rendezvous& r) {
    ++r.warp->committed;
    Warpgroup* group = r.warp->group;
    if (group->outstanding.size() <= r.warp->committed) group->outstanding.resize(r.warp->committed + 1);
  });
}
