// block=64: each thread reads what its neighbor writes, and nothing says who comes first
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  const u32 neighbor = out[threadIdx.x ^ 32];
#ifdef FIXED
  __syncthreads();
#endif
  out[threadIdx.x] = in[threadIdx.x] + neighbor;  // expect: race
}
