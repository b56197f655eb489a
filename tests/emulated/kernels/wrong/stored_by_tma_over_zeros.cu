// block=32 map=out: zeros that threads store, and a TMA store over them, which another proxy makes
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 i = threadIdx.x; i < 2048; i += 32) st_shared_u32(base + 4 * i, in[i]);
#ifdef FIXED
  for (u32 i = 2048 + threadIdx.x; i < 4096; i += 32) out[i] = 0;
#else
  for (u32 i = threadIdx.x; i < 4096; i += 32) out[i] = 0;
#endif
  fence_proxy_async_shared();
  __syncwarp();
  if (threadIdx.x == 0) {
    tma_store_tile_2d(&map, base, 0, 0);  // expect: proxy fence
    bulk_commit_group();
    bulk_wait_group<0>();
  }
}
