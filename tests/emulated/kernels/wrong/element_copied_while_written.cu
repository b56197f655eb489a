// block=64: a copy may read an element later than the thread that asks for it writes it
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 own = shared_address(shared_memory) + 4 * threadIdx.x;
  cp_async_4(own, out + threadIdx.x, 4);
  cp_async_commit_group();
#ifdef FIXED
  cp_async_wait_group<0>();
  out[threadIdx.x] = in[threadIdx.x];
#else
  out[threadIdx.x] = in[threadIdx.x];  // expect: race
  cp_async_wait_group<0>();
#endif
  out[threadIdx.x] += ld_shared_u32(own);
}
