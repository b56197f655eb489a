// What is known of each byte of a block's shared memory: who wrote it last, who has read it since, whether an
// asynchronous copy is on its way there.
//
// One cell describes 16 bytes; a cell is split into 16 of one byte each while they differ.
#pragma once

#include <array>
#include <memory>

#include "clock.h"

namespace convgen_emulator {

enum class Content : u8 { nothing, ordinary, asynchronous, in_flight, barrier, split };

struct Access {
  Epoch epoch;
  int line = 0;
};

inline bool same(const Access& a, const Access& b) {
  return a.epoch.agent == b.epoch.agent && a.epoch.count == b.epoch.count && a.line == b.line;
}

// Readers since the last write: the first few here, the rest in a list.
class Readers {
 public:
  template <class Covered>
  void add(const Access& access, Covered covered) {
    for (u8 i = 0; i < few_; ++i) {
      if (read_[i].epoch.agent == access.epoch.agent || covered(read_[i].epoch)) {
        read_[i] = access;
        return;
      }
    }
    if (few_ < read_.size()) {
      read_[few_++] = access;
      return;
    }
    if (!more_) more_ = std::make_unique<std::vector<Access>>();
    if (access.epoch.agent >= more_->size()) more_->resize(access.epoch.agent + 1);
    (*more_)[access.epoch.agent] = access;
  }
  // The first reader that `covered` does not accept, or null.
  template <class Covered>
  const Access* find_uncovered(Covered covered) const {
    for (u8 i = 0; i < few_; ++i) {
      if (!covered(read_[i].epoch)) return &read_[i];
    }
    if (more_) {
      for (const Access& a : *more_) {
        if (a.epoch.count && !covered(a.epoch)) return &a;
      }
    }
    return nullptr;
  }
  void clear() {
    few_ = 0;
    more_.reset();
  }
  bool empty() const { return few_ == 0; }
  Readers() = default;
  Readers(const Readers& other)
      : few_(other.few_), read_(other.read_), more_(other.more_ ? new std::vector<Access>(*other.more_) : nullptr) {}
  Readers& operator=(Readers&&) = default;

 private:
  u8 few_ = 0;
  std::array<Access, 3> read_;
  std::unique_ptr<std::vector<Access>> more_;
};

struct Cell {
  Content content = Content::nothing;
  Access write;
  Readers readers;
  std::unique_ptr<std::array<Cell, 16>> bytes;  // where content is `split`
};

class Shadow {
 public:
  explicit Shadow(u32 bytes) : cells_((bytes + 15) / 16) {}

  // Calls visit(cell) for each cell in [offset, offset + bytes), splitting the cells that it covers in part.
  template <class Visit>
  void each(u32 offset, u32 bytes, Visit visit) {
    for (const u32 end = offset + bytes; offset < end;) {
      Cell& cell = cells_[offset / 16];
      const u32 first = offset % 16;
      const u32 count = end - offset < 16 - first ? end - offset : 16 - first;
      if (count == 16 && cell.content != Content::split) {
        visit(cell);
      } else {
        if (cell.content != Content::split) split(cell);
        for (u32 i = first; i < first + count; ++i) visit((*cell.bytes)[i]);
        if (count == 16) merge(cell);
      }
      offset += count;
    }
  }

 private:
  static void split(Cell& cell) {
    auto bytes = std::make_unique<std::array<Cell, 16>>();
    for (Cell& b : *bytes) {
      b.content = cell.content;
      b.write = cell.write;
      b.readers = Readers(cell.readers);
    }
    cell.content = Content::split;
    cell.bytes = std::move(bytes);
  }
  static void merge(Cell& cell) {
    const Cell& first = (*cell.bytes)[0];
    for (const Cell& b : *cell.bytes) {
      if (b.content != first.content || !same(b.write, first.write) || !b.readers.empty()) return;
    }
    cell.content = first.content;
    cell.write = first.write;
    cell.readers.clear();
    cell.bytes.reset();
  }

  std::vector<Cell> cells_;
};

}  // namespace convgen_emulator
