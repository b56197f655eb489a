// block=128: 128 rows where 64 are left
#ifdef FIXED
constexpr u32 tile_offset = 0;
#else
constexpr u32 tile_offset = 24576;
#endif
extern "C" __global__ __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 i = threadIdx.x; i < 4096; i += 128) st_shared_u32(base + 4 * i, 0);
  fence_proxy_async_shared();
  __syncthreads();
  const u64 fields = u64(1) << 16 | u64(64) << 32 | u64(1) << 62;
  const u64 a = u64((base & 0x3FFFF) >> 4) | fields, b = u64((base + tile_offset & 0x3FFFF) >> 4) | fields;
  float d[64];
  wgmma_fence();
  wgmma_m64n128k16_f32_f16_f16(d, a, b, 0);  // expect: descriptor
  wgmma_commit_group();
  wgmma_wait_group<0>();
  out[threadIdx.x] = d[0];
}
