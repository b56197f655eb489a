// Loads one box by TMA and copies all of shared memory's window out, byte by byte as it lies there.  What the
// box does not cover keeps the pattern.  `out` ends with one word: whether the barrier saw the bytes expected.
extern "C" __global__ __launch_bounds__(128)
void ENTRY(const __grid_constant__ TensorMap map, u32* __restrict__ out, int bytes, int destination, COORDINATES) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  const u32 barrier = base + WINDOW;
  for (u32 i = 16 * threadIdx.x; i < WINDOW; i += 2048) {
    st_shared_v4_u32(base + i, Vec4{0xA5A5A5A5, 0xA5A5A5A5, 0xA5A5A5A5, 0xA5A5A5A5});
  }
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
  }
  fence_proxy_async_shared();
  __syncthreads();
  if (threadIdx.x == 0) {
    mbarrier_arrive_expect_tx(barrier, bytes);
    LOAD;
  }
  const bool complete = COMPLETES(barrier);
  for (u32 i = 4 * threadIdx.x; i < WINDOW; i += 512) out[i / 4] = ld_shared_u32(base + i);
  if (threadIdx.x == 0) out[WINDOW / 4] = complete;
}
