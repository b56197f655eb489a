// block=128: the barrier between stmatrix and the TMA store is missing
extern "C" __global__ __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 i = 0; i < 4; ++i) stmatrix_x4(base + 2048 * (threadIdx.x / 32) + 512 * i + 16 * (threadIdx.x % 32), 1, 2, 3, 4);
  fence_proxy_async_shared();
#ifdef FIXED
  bar_sync<1, 128>();
#endif
  if (threadIdx.x == 0) {
    tma_store_tile_2d(&map, base, 0, 0);  // expect: race or uninitialized
    bulk_commit_group();
    bulk_wait_group<0>();
  }
}
