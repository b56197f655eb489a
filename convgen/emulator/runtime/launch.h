// What Python hands over for one launch (convgen/emulator/native.py has the same layout), and the tensor map
// as the kernel carries it.
#pragma once

#include "convgen_emulator.h"

namespace convgen_emulator {

// A stretch of global memory that the kernel may touch.
struct Region {
  const char* name;
  u64 base, bytes, element_bytes;
  u32 writable;
  u32 shared;  // with other kernels: a tensor or a workspace, and no kernel's parameters
  u64 row, pitch;  // of each so many bytes, the kernel may touch the first so many: a channel slice; pitch 0: all of them
};

struct Request {
  void (*entry)(void** parameters);
  void** parameters;
  u64 seed;
  u32 grid[3];
  u32 block;
  u32 cluster;
  u32 shared_bytes;
  u32 registers;  // of a thread at launch
  u32 checks;
  u32 threads;
  u32 region_count;
  u32 dependent;  // may start before the launch before is over
  const Region* regions;
  int (*progress)(u32 done, u32 total);  // not 0: give up
  struct Events* events;                 // null: nothing is recorded
};

// The fields of a tensor map; arrays run from the innermost dim outwards, strides are in bytes.
struct Map {
  u64 base;
  u64 dims[5];
  u64 strides[5];  // strides[0] is the element's size
  u32 element_strides[5];
  u32 box[5];
  int lower[3], upper[3];
  u32 channels, pixels;
  u32 rank, im2col, element_bytes, swizzle, fill;  // fill: bits of an element outside the tensor
};

// In a kernel's 128 bytes: that they are a map of ours, and where its fields are.
struct MapHandle {
  u64 magic;
  const Map* map;
};
constexpr u64 map_magic = 0x70616d726f736e74;

}  // namespace convgen_emulator
