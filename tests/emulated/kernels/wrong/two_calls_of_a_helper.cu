// block=128: half of each warp is at an instruction of a helper that the other half comes to by another call
__device__ __forceinline__ void fence() { wgmma_fence(); }  // expect: divergence

extern "C" __global__ __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  const bool here = threadIdx.x < 32;
#else
  const bool here = threadIdx.x % 32 < 16;
#endif
  if (here) {
    fence();
  } else {
    fence();
  }
}
