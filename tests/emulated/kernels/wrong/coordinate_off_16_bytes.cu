// block=32: a row of the tensor is read from its fifth element of two bytes
#ifdef FIXED
constexpr int column = 8;
#else
constexpr int column = 4;
#endif
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    mbarrier_init(base + 8192, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(base + 8192, 8192);
    tma_load_tile_2d(base, &map, base + 8192, column, 0);  // expect: misaligned
    mbarrier_wait_parity(base + 8192, 0);
  }
}
