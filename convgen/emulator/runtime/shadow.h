// What is known of each byte of a block's shared memory: who wrote it last, who has read it since, whether an
// asynchronous copy is on its way there.
//
// One cell describes 16 bytes; while they differ it is split into four cells, and these into four of a byte each.
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

// Readers since the last write: the first few here, some in a list, very many by agent.
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
    if (!more_) more_ = std::make_unique<More>();
    more_->add(access);
  }
  // The first reader that `covered` does not accept, or null.
  template <class Covered>
  const Access* find_uncovered(Covered covered) const {
    for (u8 i = 0; i < few_; ++i) {
      if (!covered(read_[i].epoch)) return &read_[i];
    }
    if (more_) {
      for (const Access& a : more_->accesses) {
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
  // Whether anyone but this agent is among them: the first few are of different agents.
  bool any_but(Agent agent) const {
    for (u8 i = 0; i < few_; ++i) {
      if (read_[i].epoch.agent != agent) return true;
    }
    return false;
  }
  Readers() = default;
  Readers(const Readers& other)
      : few_(other.few_), read_(other.read_), more_(other.more_ ? new More(*other.more_) : nullptr) {}
  Readers& operator=(Readers&&) = default;

 private:
  struct More {
    static constexpr size_t list = 32;
    std::vector<Access> accesses;
    bool by_agent = false;

    void add(const Access& access) {
      if (!by_agent) {
        for (Access& a : accesses) {
          if (a.epoch.agent != access.epoch.agent) continue;
          a = access;
          return;
        }
        if (accesses.size() < list) return accesses.push_back(access);
        by_agent = true;
        for (const Access& a : std::exchange(accesses, {})) put(a);
      }
      put(access);
    }
    void put(const Access& access) {
      if (access.epoch.agent >= accesses.size()) accesses.resize(access.epoch.agent + 1);
      accesses[access.epoch.agent] = access;
    }
  };

  u8 few_ = 0;
  std::array<Access, 3> read_;
  std::unique_ptr<More> more_;
};

struct Cell {
  Content content = Content::nothing;
  Access write;
  Readers readers;
  std::unique_ptr<std::array<Cell, 4>> parts;  // where content is `split`
};

class Shadow {
 public:
  explicit Shadow(u32 bytes) : cells_((bytes + largest - 1) / largest) {}

  // Calls visit(cell, offset) for each cell in [offset, offset + bytes), splitting the cells that it covers in part.
  template <class Visit>
  void each(u32 offset, u32 bytes, Visit visit) {
    each_part(cells_.data(), largest, offset, offset, offset + bytes, visit);
  }

 private:
  static constexpr u32 largest = 16;

  // Of cells of `size` bytes each; `from` and `end` count from the first of them, `offset` from the whole memory's.
  template <class Visit>
  static void each_part(Cell* cells, u32 size, u32 offset, u32 from, u32 end, Visit& visit) {
    while (from < end) {
      Cell& cell = cells[from / size];
      const u32 first = from % size, count = end - from < size - first ? end - from : size - first;
      if (count == size && cell.content != Content::split) {
        visit(cell, offset);
      } else {
        if (cell.content != Content::split) split(cell);
        each_part(cell.parts->data(), size / 4, offset, first, first + count, visit);
        if (count == size) merge(cell);
      }
      from += count;
      offset += count;
    }
  }
  static void split(Cell& cell) {
    auto parts = std::make_unique<std::array<Cell, 4>>();
    for (Cell& part : *parts) {
      part.content = cell.content;
      part.write = cell.write;
      part.readers = Readers(cell.readers);
    }
    cell.content = Content::split;
    cell.parts = std::move(parts);
  }
  static void merge(Cell& cell) {
    const Cell& first = (*cell.parts)[0];
    if (first.content == Content::split) return;
    for (const Cell& part : *cell.parts) {
      if (part.content != first.content || !same(part.write, first.write) || !part.readers.empty()) return;
    }
    cell.content = first.content;
    cell.write = first.write;
    cell.readers.clear();
    cell.parts.reset();
  }

  std::vector<Cell> cells_;
};

}  // namespace convgen_emulator
