// block=128 cluster=2: a block overwrites another's stores, which an arrival at the scope of a block has not published
extern "C" __global__ __cluster_dims__(2, 1, 1) __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u, free_barrier = base + 8192, full = free_barrier + 8;
  const u32 rank = cluster_ctarank();
  const int thread = threadIdx.x;
  if (thread == 0) {
    mbarrier_init(free_barrier, 1);
    mbarrier_init(full, 1);
    fence_mbarrier_init();
  }
  cluster_arrive_relaxed();
  cluster_wait();
  if (rank == 1) {
    if (thread == 0) mbarrier_arrive_expect_tx(full, 8192);
    st_shared_v4_u32(base + thread * 64, Vec4{1, 2, 3, 4});
    fence_proxy_async_shared();
    __syncthreads();
    u32 sum = 0;
#ifdef FIXED
    sum = ld_shared_v4_u32(base + (127 - thread) * 64).x;  // the stores are done: another thread has read them
    __syncthreads();
#endif
    if (thread == 0) mbarrier_arrive_cluster(free_barrier, 0);
    mbarrier_wait_parity(full, 0);
    out[thread] = sum + ld_shared_u32(base + thread * 64);
  } else if (thread == 0) {
    mbarrier_wait_parity(free_barrier, 0);
    mbarrier_arrive_expect_tx(full, 0);
    tma_load_tile_2d_multicast(base, &map, full, 0, 0, 2);  // expect: race
  }
  cluster_arrive();
  cluster_wait();
}
