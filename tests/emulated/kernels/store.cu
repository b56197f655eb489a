// Stores one box from an image of shared memory.
extern "C" __global__ __launch_bounds__(128)
void store(const __grid_constant__ TensorMap map, const u32* __restrict__ image, COORDINATES) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 i = 4 * threadIdx.x; i < BYTES; i += 512) st_shared_u32(base + i, image[i / 4]);
  fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    STORE;
    bulk_commit_group();
    bulk_wait_group_read<0>();
  }
}
