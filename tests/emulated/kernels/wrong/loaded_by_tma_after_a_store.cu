// block=32 map=out: a thread's stores to global memory, and then TMA: another proxy
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u, barrier = base + 8192;
#ifdef FIXED
  const int first = 2048;
#else
  const int first = 0;
#endif
  for (int i = threadIdx.x; i < 2048; i += 32) out[first + i] = in[i];
  __syncwarp();
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, 8192);
    tma_load_tile_2d(base, &map, barrier, 0, 0);  // expect: proxy fence
    mbarrier_wait_parity(barrier, 0);
  }
}
