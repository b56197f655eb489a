// block=128: what a TMA store has read from shared memory is not in global memory yet
extern "C" __global__ __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (int i = threadIdx.x; i < 2048; i += 128) st_shared_u32(base + i * 4, in[i]);
  fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_init(base + 16384, 1);
    fence_mbarrier_init();
    tma_store_tile_2d(&map, base, 0, 0);
    bulk_commit_group();
#ifdef FIXED
    bulk_wait_group<0>();
#else
    bulk_wait_group_read<0>();
#endif
    mbarrier_arrive_expect_tx(base + 16384, 8192);
    tma_load_tile_2d(base + 8192, &map, base + 16384, 0, 0);  // expect: race
    mbarrier_wait_parity(base + 16384, 0);
  }
}
