// One wgmma over an image of shared memory: d comes and goes as the threads hold it.
// `fields`: the descriptors of a and b but for the base of shared memory, then whether to accumulate.
extern "C" __global__ __launch_bounds__(128)
void ENTRY(const u32* __restrict__ image, const u32* __restrict__ a_registers, const u64* __restrict__ fields,
           u32* __restrict__ out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 i = 4 * threadIdx.x; i < IMAGE; i += 512) {
    st_shared_v2_u32(base + i * 4, image[i], image[i + 1]);
    st_shared_v2_u32(base + i * 4 + 8, image[i + 2], image[i + 3]);
  }
  fence_proxy_async_shared();
  __syncthreads();
  const u64 start = (base & 0x3FFFF) >> 4;
  const u64 descriptor_a = fields[0] + start, descriptor_b = fields[1] + start;
  const u32 accumulate = u32(fields[2]);
  u32 a[4];
  for (int i = 0; i < 4; ++i) a[i] = a_registers[4 * threadIdx.x + i];
  ACCUMULATOR d[N / 2];
  for (int i = 0; i < N / 2; ++i) d[i] = AS_ACCUMULATOR(out[N / 2 * threadIdx.x + i]);
  wgmma_fence();
  CALL;
  wgmma_commit_group();
  wgmma_wait_group<0>();
  for (int i = 0; i < N / 2; ++i) out[N / 2 * threadIdx.x + i] = AS_BITS(d[i]);
}
