// block=128: registers of a for two steps, of which three are under way
extern "C" __global__ __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 i = threadIdx.x; i < 2048; i += 128) st_shared_u32(base + 4 * i, 0);
  fence_proxy_async_shared();
  __syncthreads();
  const u64 tile = u64((base & 0x3FFFF) >> 4) | u64(1) << 16 | u64(64) << 32 | u64(1) << 62;
  float d[4];
  u32 a[2][4];
  for (int step = 0; step < 3; ++step) {
    for (u32& v : a[step % 2]) v = in[threadIdx.x + step];
    wgmma_fence();
    wgmma_m64n8k16_f32_f16_f16_rs(d, a[step % 2], tile, step > 0);  // expect: in flight
    wgmma_commit_group();
#ifdef FIXED
    wgmma_wait_group<1>();
#endif
  }
  wgmma_wait_group<0>();
  out[threadIdx.x] = d[0];
}
