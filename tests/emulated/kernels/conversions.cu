// Every value of the small types to float, floats to the small types.
extern "C" __global__ __launch_bounds__(256)
void conversions(const float* __restrict__ values, float* __restrict__ wide, u32* __restrict__ narrow, int count) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  wide[4 * i] = cvt_f32_f16(f16(i));
  wide[4 * i + 1] = cvt_f32_bf16(bf16(i));
  wide[4 * i + 2] = cvt_f32_e4m3(e4m3(i));
  wide[4 * i + 3] = cvt_f32_e5m2(e5m2(i));
  if (i >= count) return;
  const float v = values[i];
  narrow[7 * i] = cvt_f16_f32(v);
  narrow[7 * i + 1] = cvt_bf16_f32(v);
  narrow[7 * i + 2] = cvt_e4m3_f32(v);
  narrow[7 * i + 3] = cvt_e5m2_f32(v);
  narrow[7 * i + 4] = u32(int(cvt_s8_f32(v)));
  narrow[7 * i + 5] = cvt_tf32_f32(v);
  narrow[7 * i + 6] = cvt_f16x2_f32(v, -v) ^ cvt_bf16x2_f32(-v, v);
}
