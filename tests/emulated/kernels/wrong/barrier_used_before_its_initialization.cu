// block=64: the other warp may come first
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  if (threadIdx.x == 0) mbarrier_init(base, 2);
#ifdef FIXED
  __syncthreads();
#endif
  if (threadIdx.x % 32 == 0) mbarrier_arrive(base);  // expect: race or barrier
}
