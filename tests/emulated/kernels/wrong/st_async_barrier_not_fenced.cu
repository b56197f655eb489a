// block=32 cluster=2: the fence that publishes an mbarrier's initialization comes before it
extern "C" __global__ __cluster_dims__(2, 1, 1) __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  const u32 peer = cluster_ctarank() ^ 1;
  if (threadIdx.x == 0) {
    mbarrier_init(base + 8200, 1);
#ifdef FIXED
    mbarrier_init(base + 8192, 1);
    fence_mbarrier_init();
#else
    fence_mbarrier_init();
    mbarrier_init(base + 8192, 1);
#endif
    mbarrier_arrive_expect_tx(base + 8192, 32 * 16);
  }
  cluster_arrive_relaxed();
  cluster_wait();
  st_async_v4_f32(mapa_shared_cluster(base + 16 * threadIdx.x, peer), mapa_shared_cluster(base + 8192, peer), 1.0f, 2.0f, 3.0f, 4.0f);  // expect: proxy fence or race
  mbarrier_wait_parity(base + 8192, 0);
}
