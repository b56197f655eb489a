// Arithmetic of pairs: sums, differences and products of a and b, of f16 in columns 0 to 2, of bf16 in 3 to 5.
extern "C" __global__ void pairs(const u32* a, const u32* b, u32* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  out[i * 6] = add_f16x2(a[i], b[i]);
  out[i * 6 + 1] = sub_f16x2(a[i], b[i]);
  out[i * 6 + 2] = mul_f16x2(a[i], b[i]);
  out[i * 6 + 3] = add_bf16x2(a[i], b[i]);
  out[i * 6 + 4] = sub_bf16x2(a[i], b[i]);
  out[i * 6 + 5] = mul_bf16x2(a[i], b[i]);
}
