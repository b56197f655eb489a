// block=32 cluster=2: a relaxed arrival orders no stores
extern "C" __global__ __cluster_dims__(2, 1, 1) __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  cluster_arrive_relaxed();
  cluster_wait();
  st_shared_cluster_v4_f32(base + 16 * threadIdx.x, cluster_ctarank() ^ 1, 1.0f, 2.0f, 3.0f, 4.0f);
#ifdef FIXED
  cluster_arrive();
#else
  cluster_arrive_relaxed();
#endif
  cluster_wait();
  float v[4];
  ld_shared_v4_f32(v, base + 16 * threadIdx.x);  // expect: race or uninitialized
  out[32 * blockIdx.x + threadIdx.x] = u32(v[0]);
  cluster_arrive();
  cluster_wait();
}
