// block=32: a load may begin before the tensor, a store may not
#ifdef FIXED
constexpr int row = 8;
#else
constexpr int row = -8;
#endif
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 i = threadIdx.x; i < 2048; i += 32) st_shared_u32(base + 4 * i, 0);
  fence_proxy_async_shared();
  __syncwarp();
  if (threadIdx.x == 0) {
    tma_store_tile_2d(&map, base, 0, row);  // expect: out of bounds
    bulk_commit_group();
    bulk_wait_group<0>();
  }
}
