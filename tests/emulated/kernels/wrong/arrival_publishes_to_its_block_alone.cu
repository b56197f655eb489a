// block=32 cluster=2: an arrival in another block releases at the scope of a block: that one need not see the stores
extern "C" __global__ __cluster_dims__(2, 1, 1) __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory), barrier = base + 1024;
  const u32 peer = cluster_ctarank() ^ 1;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 32);
    fence_mbarrier_init();
  }
  cluster_arrive_relaxed();
  cluster_wait();
  st_shared_cluster_v4_f32(base + 16 * threadIdx.x, peer, 1.0f, 2.0f, 3.0f, 4.0f);
  mbarrier_arrive_cluster(barrier, peer);
  mbarrier_wait_parity(barrier, 0);
#ifdef FIXED
  cluster_arrive();
  cluster_wait();
#endif
  float v[4];
  ld_shared_v4_f32(v, base + 16 * threadIdx.x);  // expect: race
  out[32 * blockIdx.x + threadIdx.x] = u32(v[0]);
  cluster_arrive();
  cluster_wait();
}
