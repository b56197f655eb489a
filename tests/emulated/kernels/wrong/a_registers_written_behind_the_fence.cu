// block=128: a from registers, which the thread fills behind the fence
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
  u32 a[4] = {1, 2, 3, 4};
  wgmma_fence();
#else
  wgmma_fence();
  u32 a[4] = {1, 2, 3, 4};
#endif
  wgmma_m64n8k16_f32_f16_f16_rs(d, a, tile, 0);  // expect: wgmma fence
  wgmma_commit_group();
  wgmma_wait_group<0>();
  out[threadIdx.x] = d[0];
}
