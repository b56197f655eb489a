// The emulator's runtime as one translation unit: it is compiled once for a machine and kept.

#define CONVGEN_EMULATOR_RUNTIME
#include "convgen_emulator.h"

#include "schedule.cc"
#include "memory.cc"
#include "barriers.cc"
#include "warp.cc"
#include "copies.cc"
#include "wgmma.cc"
#include "global.cc"
#include "launch.cc"
