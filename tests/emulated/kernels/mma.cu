// One mma.sync on fragments from memory.
extern "C" __global__ __launch_bounds__(32)
void ENTRY(const u32* __restrict__ a_fragments, const u32* __restrict__ b_fragments, ACCUMULATOR* __restrict__ out) {
  u32 a[A_REGISTERS], b[A_REGISTERS / 2];
  ACCUMULATOR d[4];
  for (int i = 0; i < A_REGISTERS; ++i) a[i] = a_fragments[A_REGISTERS * threadIdx.x + i];
  for (int i = 0; i < A_REGISTERS / 2; ++i) b[i] = b_fragments[A_REGISTERS / 2 * threadIdx.x + i];
  for (int i = 0; i < 4; ++i) d[i] = out[4 * threadIdx.x + i];
  CALL;
  for (int i = 0; i < 4; ++i) out[4 * threadIdx.x + i] = d[i];
}
