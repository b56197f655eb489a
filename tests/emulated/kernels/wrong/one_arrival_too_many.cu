// block=64: two arrive where one is expected, in one phase
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
#ifdef FIXED
  const u32 arrivals = 2;
#else
  const u32 arrivals = 1;
#endif
  if (threadIdx.x == 0) {
    mbarrier_init(base + 8192, arrivals);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(base + 8192, 8192);
  }
  __syncthreads();
  if (threadIdx.x == 32) mbarrier_arrive(base + 8192);  // expect: barrier
  __syncthreads();
  if (threadIdx.x == 0) tma_load_tile_2d(base, &map, base + 8192, 0, 0);
  mbarrier_wait_parity(base + 8192, 0);
}
