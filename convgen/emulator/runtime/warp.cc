// Instructions of a whole warp: votes, shuffles, matrix loads and stores, mma.sync, registers.

#include "numbers.h"
#include "state.h"

namespace convgen_emulator {

// ---- votes and shuffles ----------------------------------------------------------------------------------

struct Ballot {
  Vote kind;
  bool value;
  u32 result;
};

struct Exchange {
  Shuffle kind;
  u64 bits, result;
  int by, width;
};

static void shuffle_lanes(Rendezvous& r) {
  const Exchange* one = nullptr;
  for (Thread* t : r.warp->threads) {
    if (!(r.mask & t->bit)) continue;
    auto* mine = static_cast<Exchange*>(r.arguments[t->lane]);
    if (!one) one = mine;
    if (mine->kind != one->kind || mine->width != one->width) {
      fatal("divergence", r.line, format("lane %u meets a shuffle of another kind or width", t->lane));
    }
    const int lane = int(t->lane), first = lane & ~(mine->width - 1), last = first + mine->width - 1;
    int from = lane;
    switch (mine->kind) {
      case Shuffle::index: from = first + (mine->by & (mine->width - 1)); break;
      case Shuffle::up: from = lane - mine->by < first ? lane : lane - mine->by; break;
      case Shuffle::down: from = lane + mine->by > last ? lane : lane + mine->by; break;
      case Shuffle::exclusive_or: from = (lane ^ mine->by) > last ? lane : lane ^ mine->by; break;
    }
    // a lane outside of the mask has no value to give
    mine->result = r.mask >> from & 1 ? static_cast<Exchange*>(r.arguments[from])->bits : ~0ull;
  }
}

u64 shuffle(Shuffle kind, u32 mask, u64 bits, int by, int width, int line) {
  if (width < 1 || width > 32 || width & (width - 1)) fatal("divergence", line, format("a shuffle of width %d", width));
  Exchange exchange{kind, bits, 0, by & 31, width};  // the instruction has five bits for it
  meet(CONVGEN_SITE, "a shuffle", Lanes::masked, mask & current->warp->lanes, line, &exchange, shuffle_lanes);
  return exchange.result;
}

u32 vote(Vote kind, u32 mask, int predicate, int line) {
  Ballot ballot{kind, predicate != 0, 0};
  meet(CONVGEN_SITE, "a vote", Lanes::masked, mask & current->warp->lanes, line, &ballot, [](Rendezvous& r) {
    u32 result = 0;
    const Ballot* one = nullptr;
    for (Thread* t : r.warp->threads) {
      if (!(r.mask & t->bit)) continue;
      const auto* mine = static_cast<Ballot*>(r.arguments[t->lane]);
      if (!one) one = mine;
      if (mine->kind != one->kind) {
        fatal("divergence", r.line, format("lane %u meets a vote of another kind", t->lane));
      }
      if (mine->value) result |= t->bit;
    }
    for (Thread* t : r.warp->threads) {
      if (r.mask & t->bit) static_cast<Ballot*>(r.arguments[t->lane])->result = result;
    }
  });
  return ballot.result;
}

// ---- matrices in shared memory ---------------------------------------------------------------------------

constexpr u32 row_bytes = 16;  // 8 elements of 2 bytes

struct MatrixAccess {
  u32* r;
  int count;
  bool transposed;
  u32 address;
};

// Visits the 16-bit elements of `count` 8x8 matrices: matrix, row, column, the lane and half that hold it.
template <class Visit>
static void each_element(int count, bool transposed, Visit visit) {
  for (int matrix = 0; matrix < count; ++matrix) {
    for (int row = 0; row < 8; ++row) {
      for (int column = 0; column < 8; ++column) {
        const int major = transposed ? column : row, minor = transposed ? row : column;
        visit(matrix, row, column, major * 4 + minor / 2, minor % 2);
      }
    }
  }
}

// An instruction of 32 lanes, in a warp that has as many.
static void check_whole(const Rendezvous& r, const char* what) {
  if (r.warp->threads.size() < 32) {
    fatal("divergence", r.line, format("%s in a warp of %zu threads", what, r.warp->threads.size()));
  }
}

// Offsets of the rows, whose addresses the first 8 * count lanes give.
static void matrix_rows(Rendezvous& r, const MatrixAccess& access, u32 (&offsets)[32]) {
  for (int i = 0; i < 8 * access.count; ++i) {
    const u32 address = static_cast<MatrixAccess*>(r.arguments[i])->address;
    check_aligned(address, row_bytes, "a matrix row", r.line);
    offsets[i] = shared_offset(r.warp->block, address, row_bytes, "a matrix row", r.line);
  }
}

static void ldmatrix_lanes(Rendezvous& r) {
  check_whole(r, "ldmatrix");
  const auto& access = *static_cast<MatrixAccess*>(r.arguments[0]);
  Block* block = r.warp->block;
  u32 offsets[32];
  matrix_rows(r, access, offsets);
  for (int i = 0; i < 8 * access.count; ++i) {
    check_read(block, offsets[i], row_bytes, WholeWarp{r.warp}, Proxy::ordinary, {now(r.warp->threads[i]), r.line},
               "reads");
  }
  each_element(access.count, access.transposed, [&](int matrix, int row, int column, int lane, int half) {
    u16* to = reinterpret_cast<u16*>(&static_cast<MatrixAccess*>(r.arguments[lane])->r[matrix]) + half;
    memcpy(to, &block->shared[offsets[8 * matrix + row] + 2 * column], 2);
  });
}

static void stmatrix_lanes(Rendezvous& r) {
  check_whole(r, "stmatrix");
  const auto& access = *static_cast<MatrixAccess*>(r.arguments[0]);
  Block* block = r.warp->block;
  u32 offsets[32];
  matrix_rows(r, access, offsets);
  has_effect(words(8 * u32(access.count) * row_bytes), r.line);
  for (int i = 0; i < 8 * access.count; ++i) {
    const Thread* t = r.warp->threads[i];
    check_write(block, offsets[i], row_bytes, OneThread{t}, Proxy::ordinary, {now(t), r.line}, Content::ordinary,
                "writes");
  }
  each_element(access.count, access.transposed, [&](int matrix, int row, int column, int lane, int half) {
    const u16* from = reinterpret_cast<const u16*>(&static_cast<MatrixAccess*>(r.arguments[lane])->r[matrix]) + half;
    memcpy(&block->shared[offsets[8 * matrix + row] + 2 * column], from, 2);
  });
}

void ldmatrix(u32* r, int count, bool transposed, u32 address, int line) {
  MatrixAccess access{r, count, transposed, address};
  meet(CONVGEN_SITE, "ldmatrix", Lanes::all, 0, line, &access, ldmatrix_lanes);
}

void stmatrix(u32 address, const u32* r, int count, bool transposed, int line) {
  MatrixAccess access{const_cast<u32*>(r), count, transposed, address};
  meet(CONVGEN_SITE, "stmatrix", Lanes::all, 0, line, &access, stmatrix_lanes);
}

// ---- mma.sync --------------------------------------------------------------------------------------------

struct WarpMma {
  void* d;
  const u32 *a, *b;
  int k;
  Type a_type, b_type;
};

// Register j of a fragment of 32-bit registers holds elements k0 to k0 + per - 1 of row g (+ 8 for odd j).
struct FragmentPlace {
  int row, k;
};
inline FragmentPlace fragment_place(int lane, int j, int per) {
  return {lane / 4 + 8 * (j % 2), lane % 4 * per + j / 2 * 4 * per};
}

static void mma_lanes(Rendezvous& r) {
  check_whole(r, "mma");
  const auto& shape = *static_cast<WarpMma*>(r.arguments[0]);
  const int per = 4 / element_bytes(shape.a_type), k = shape.k;
  const int a_registers = k / per / 2, b_registers = a_registers / 2;
  note(Did::mma, r.warp->threads[0], r.line);
  has_effect(u64(16 * 8 * k) / products_of_a_word, r.line);
  float a[16][32], b[8][32];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<WarpMma*>(r.arguments[lane]);
    for (int j = 0; j < a_registers; ++j) {
      const FragmentPlace at = fragment_place(lane, j, per);
      decoder().expand(shape.a_type, reinterpret_cast<const u8*>(mine.a + j), per, &a[at.row][at.k], 1);
    }
    for (int j = 0; j < b_registers; ++j) {
      const int k0 = fragment_place(lane, 2 * j, per).k;
      decoder().expand(shape.b_type, reinterpret_cast<const u8*>(mine.b + j), per, &b[lane / 4][k0], 1);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& mine = *static_cast<WarpMma*>(r.arguments[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
      float sum = 0;
      for (int kk = 0; kk < k; ++kk) sum += a[row][kk] * b[column][kk];
      if (shape.a_type == Type::s8) {
        static_cast<u32*>(mine.d)[i] += u32(int(sum));  // exact: at most 32 products below 2^15
      } else {
        static_cast<float*>(mine.d)[i] += sum;
      }
    }
  }
}

void mma(void* d, const u32* a, const u32* b, int k, Type a_type, Type b_type, int line) {
  WarpMma arguments{d, a, b, k, a_type, b_type};
  meet(CONVGEN_SITE, "mma", Lanes::all, 0, line, &arguments, mma_lanes);
}

// ---- registers -------------------------------------------------------------------------------------------
//
// How many a thread has at launch is the compiler's choice; the request has the most that fit, so that what
// waits for ever here does so on any GPU.

// All warps of a warpgroup execute the same setmaxnreg; that one lacks some is found when the block has ended.
static void check_same_request(Warp* warp, int registers, bool increase, int line) {
  if (warp->group->warps.size() != 4) {
    fatal("registers", line,
          format("setmaxnreg in a block's last %zu warps: a warpgroup is four", warp->group->warps.size()));
  }
  auto& requests = warp->group->requests;
  if (warp->requests == requests.size()) requests.push_back({registers, increase, line});
  const RegisterRequest& first = requests[warp->requests++];
  if (first.registers == registers && first.line == line) return;
  fatal("registers", line,
        format("setmaxnreg to %d registers in a warpgroup of which another warp executes that of line %d", registers,
               first.line));
}

// A kernel is compiled for the most registers that a warpgroup takes: one that does not ask may lack them.
static void check_requests(const Warp* warp) {
  const auto& requests = warp->group->requests;
  const bool whole = warp->group->warps.size() == 4;
  for (auto& other : warp->block->warps) {
    for (const RegisterRequest& request : other->group->requests) {
      if (!whole || !requests.empty() || !request.increase) continue;
      finding("registers", request.line, "a warpgroup takes registers that another one is compiled for and does not ask for",
              warp->threads[0]);
      return;
    }
  }
  if (warp->requests == requests.size()) return;
  finding("registers", requests[warp->requests].line,
          "setmaxnreg in a part of a warpgroup: every warp of the four must execute it", warp->threads[0]);
}

void setmaxnreg(int registers, bool increase, int line) {
  Warp* warp = current->warp;
  const auto wrong = [&](const char* why) {
    fatal("registers", line, format("setmaxnreg to %d registers: %s", registers, why));
  };
  if (registers < 24 || registers > 256 || registers % 8) wrong("a multiple of 8 from 24 to 256 is allowed");
  meet(CONVGEN_SITE, "setmaxnreg", Lanes::all, 0, line, nullptr, [](Rendezvous&) {});
  if (current->lane == 0) {  // the pool is counted in registers of a thread, for each warp
    Block* block = warp->block;
    const u32 wanted = u32(registers);
    check_same_request(warp, registers, increase, line);
    if (increase ? wanted < warp->registers : wanted > warp->registers) {
      wrong(format("a thread has %u, and this one may only %s", warp->registers, increase ? "take" : "give back").c_str());
    }
    while (increase && wanted > warp->registers + block->free_registers) {
      sleep({WaitFor::registers, line, block, wanted - warp->registers});
    }
    block->free_registers += warp->registers - wanted;  // wraps where it takes, and back
    warp->registers = wanted;
    for (auto& t : block->threads) {
      if (t->wait.what == WaitFor::registers) wake(t.get());
    }
  }
  meet(CONVGEN_SITE, "setmaxnreg", Lanes::all, 0, line, nullptr, [](Rendezvous&) {});
}

}  // namespace convgen_emulator

using namespace convgen_emulator;

u32 __activemask(int) { return current->bit; }  // no lane is promised to run beside another

float cvt_f32_f16(u16 v) { return decode(f16_format, v); }
float cvt_f32_bf16(u16 v) { return decode_bf16(v); }
float cvt_f32_e4m3(u8 v) { return decode(e4m3_format, v); }
float cvt_f32_e5m2(u8 v) { return decode(e5m2_format, v); }
u16 cvt_f16_f32(float v) { return u16(encode(f16_format, v)); }
u16 cvt_bf16_f32(float v) { return encode_bf16(v); }
u8 cvt_e4m3_f32(float v) { return u8(encode(e4m3_format, v)); }
u8 cvt_e5m2_f32(float v) { return u8(encode(e5m2_format, v)); }
signed char cvt_s8_f32(float v) {
  const float rounded = rintf(v);
  if (rounded != rounded) return 0;
  return rounded < -128.0f ? -128 : rounded > 127.0f ? 127 : (signed char)(rounded);
}
u32 cvt_tf32_f32(float v) {
  if (v != v) return 0x7fffffff;
  return (__float_as_uint(v) + 0x1000) & 0xffffe000;  // to nearest, ties away from zero
}
