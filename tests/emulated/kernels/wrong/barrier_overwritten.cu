// block=32: the tile covers the barrier
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
#ifdef FIXED
  const u32 barrier = base + 8192;
#else
  const u32 barrier = base + 8184;
#endif
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, 8192);
    tma_load_tile_2d(base, &map, barrier, 0, 0);  // expect: barrier
    mbarrier_wait_parity(barrier, 0);
  }
}
