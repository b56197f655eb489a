// block=64: a thread of another warp has waited, this one has not
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    mbarrier_init(base + 8192, 1);
    mbarrier_init(base + 8200, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(base + 8192, 8192);
    tma_load_tile_2d(base, &map, base + 8192, 0, 0);
    mbarrier_arrive(base + 8200);
    mbarrier_wait_parity(base + 8192, 0);
  }
  if (threadIdx.x == 32) {
    mbarrier_wait_parity(base + 8200, 0);
#ifdef FIXED
    mbarrier_wait_parity(base + 8192, 0);
#endif
    out[0] = ld_shared_u32(base);  // expect: in flight or race
  }
}
