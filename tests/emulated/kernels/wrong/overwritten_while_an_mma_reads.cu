// block=256: the stage is freed before its MMA has been waited for
extern "C" __global__ __launch_bounds__(256)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  const u32 full = base + 8192, empty = base + 8200;
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    mbarrier_init(empty, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 2; ++i) {
      mbarrier_wait_parity(empty, i & 1 ^ 1);
      mbarrier_arrive_expect_tx(full, 8192);
      tma_load_tile_2d(base, &map, full, 0, 0);  // expect: overwritten while read
    }
  } else if (threadIdx.x >= 128) {
    float d[4];
    for (u32 i = 0; i < 2; ++i) {
      mbarrier_wait_parity(full, i & 1);
      const u64 tile = u64((base & 0x3FFFF) >> 4) | u64(1) << 16 | u64(64) << 32 | u64(1) << 62;
      wgmma_fence();
      wgmma_m64n8k16_f32_f16_f16(d, tile, tile, 0);
      wgmma_commit_group();
#ifdef FIXED
      wgmma_wait_group<0>();
#endif
      if (threadIdx.x == 128) mbarrier_arrive(empty);
      wgmma_wait_group<0>();
    }
    out[threadIdx.x] = d[0];
  }
}
