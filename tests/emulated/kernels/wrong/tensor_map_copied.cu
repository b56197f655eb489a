// block=32: TMA reads a map through a proxy of its own, and not from a thread's local memory
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u, barrier = base + 8192;
#ifdef FIXED
  const TensorMap& tile = map;
#else
  const TensorMap tile = map;
#endif
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, 8192);
    tma_load_tile_2d(base, &tile, barrier, 0, 0);  // expect: tensor map
    mbarrier_wait_parity(barrier, 0);
  }
}
