// block=64: half of each warp is at a barrier that the other half is not at, though both are in one line
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  const bool here = threadIdx.x < 32;
#else
  const bool here = threadIdx.x % 32 < 16;
#endif
  here ? bar_sync<1, 64>() : bar_sync<1, 64>();  // expect: divergence
}
