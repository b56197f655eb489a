// block=128: sums begin at a bias, which the thread puts into them behind the fence
extern "C" __global__ __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 i = threadIdx.x; i < 2048; i += 128) st_shared_u32(base + 4 * i, 0);
  fence_proxy_async_shared();
  __syncthreads();
  const u64 tile = u64((base & 0x3FFFF) >> 4) | u64(1) << 16 | u64(64) << 32 | u64(1) << 62;
  float d[4];
#ifdef FIXED
  for (float& v : d) v = 1.0f;
  wgmma_fence();
#else
  wgmma_fence();
  for (float& v : d) v = 1.0f;
#endif
  wgmma_m64n8k16_f32_f16_f16(d, tile, tile, 1);  // expect: wgmma fence
  wgmma_commit_group();
  wgmma_wait_group<0>();
  out[threadIdx.x] = d[0];
}
