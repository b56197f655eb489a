// Stores one box by TMA from a window of shared memory.
extern "C" __global__ __launch_bounds__(128)
void ENTRY(const __grid_constant__ TensorMap map, const u32* __restrict__ window, int source, COORDINATES) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 i = 4 * threadIdx.x; i < WINDOW; i += 512) st_shared_u32(base + i, window[i / 4]);
  fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    STORE;
    bulk_commit_group();
    bulk_wait_group_read<0>();
  }
}
