// block=32 dependent=1: as by TMA
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u, barrier = base + 8192;
  if (threadIdx.x == 0) {
    prefetch_tensormap(&map);  // a parameter, which no kernel writes
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
#ifdef FIXED
    griddepcontrol_wait();
#endif
    mbarrier_arrive_expect_tx(barrier, 8192);
    tma_load_tile_2d(base, &map, barrier, 0, 0);  // expect: launch before
  }
  __syncthreads();
  mbarrier_wait_parity(barrier, 0);
  griddepcontrol_wait();
  out[threadIdx.x] = ld_shared_u32(base + 4 * threadIdx.x);
}
