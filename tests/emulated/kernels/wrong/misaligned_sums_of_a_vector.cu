// block=32: two sums by one instruction, at an odd element
#ifdef FIXED
constexpr int first = 2;
#else
constexpr int first = 1;
#endif
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  if (threadIdx.x < 8) red_global_add_v2_f32(reinterpret_cast<float*>(out) + first, 1.0f, 2.0f);  // expect: misaligned
}
