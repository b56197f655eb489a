// block=32: matrix stores take a whole warp
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
#ifndef FIXED
  if (threadIdx.x >= 8) return;
#endif
  stmatrix_x1(base + 16 * (threadIdx.x % 8), 1);  // expect: divergence
}
