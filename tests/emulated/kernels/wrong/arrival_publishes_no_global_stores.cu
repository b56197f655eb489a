// block=32 cluster=2: an arrival in another block releases at the scope of a block, stores to global memory, too
extern "C" __global__ __cluster_dims__(2, 1, 1) __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 barrier = shared_address(shared_memory), peer = cluster_ctarank() ^ 1;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 32);
    fence_mbarrier_init();
  }
  cluster_arrive_relaxed();
  cluster_wait();
  out[32 * cluster_ctarank() + threadIdx.x] = in[threadIdx.x];
#ifdef FIXED
  __threadfence();
#endif
  mbarrier_arrive_cluster(barrier, peer);
  mbarrier_wait_parity(barrier, 0);
  out[64 + 32 * cluster_ctarank() + threadIdx.x] = out[32 * peer + threadIdx.x];  // expect: race
  cluster_arrive();
  cluster_wait();
}
