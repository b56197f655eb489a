// The seeded source of every choice that the memory model leaves open (xorshift64*, splitmix64 to seed it).
#pragma once

#include "convgen_emulator.h"

namespace convgen_emulator {

class Random {
 public:
  explicit Random(u64 seed = 0) { reseed(seed); }

  void reseed(u64 seed) {
    seed += 0x9e3779b97f4a7c15;
    seed = (seed ^ seed >> 30) * 0xbf58476d1ce4e5b9;
    seed = (seed ^ seed >> 27) * 0x94d049bb133111eb;
    state_ = (seed ^ seed >> 31) | 1;
  }
  u32 next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return u32(state_ * 0x2545f4914f6cdd1d >> 32);
  }
  // Uniform in [0, bound).
  u32 below(u32 bound) { return u32(u64(next()) * bound >> 32); }

 private:
  u64 state_;
};

}  // namespace convgen_emulator
