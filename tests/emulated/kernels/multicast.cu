// Blocks 0 and 1 of a cluster of four each load a tile into two blocks; every block copies out what it got.
extern "C" __global__ __cluster_dims__(4, 1, 1) __launch_bounds__(32)
void multicast(const __grid_constant__ TensorMap x_map, u32* __restrict__ y) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  const u32 barrier = base + 4096;
  const u32 rank = cluster_ctarank();
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, 2048);
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0 && rank < 2) tma_load_tile_2d_multicast(base, &x_map, barrier, 0, 64 * rank, u16(5 << rank));
  mbarrier_wait_parity(barrier, 0);
  for (u32 i = threadIdx.x; i < 512; i += 32) y[512 * rank + i] = ld_shared_u32(base + 4 * i);
  __syncwarp();
  cluster_arrive();
  cluster_wait();
}
