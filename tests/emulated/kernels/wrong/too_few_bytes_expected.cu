// block=32: the phase completes after one of two loads
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
#ifdef FIXED
  const u32 bytes = 16384;
#else
  const u32 bytes = 8192;
#endif
  if (threadIdx.x == 0) {
    mbarrier_init(base + 16384, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(base + 16384, bytes);
    tma_load_tile_2d(base, &map, base + 16384, 0, 0);
    tma_load_tile_2d(base + 8192, &map, base + 16384, 0, 0);
    mbarrier_wait_parity(base + 16384, 0);
    out[0] = ld_shared_u32(base + 4) +  // expect: in flight or race
             ld_shared_u32(base + 8192);  // expect: in flight or race
  }
}
