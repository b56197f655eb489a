// block=32: each thread waits for its own copies alone
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  cp_async_16(base + 16 * threadIdx.x, in + 4 * threadIdx.x, 16);
  cp_async_commit_group();
  cp_async_wait_group<0>();
#ifdef FIXED
  __syncwarp();
#endif
  out[threadIdx.x] = ld_shared_u32(base + 16 * (threadIdx.x ^ 1));  // expect: in flight or race or uninitialized
}
