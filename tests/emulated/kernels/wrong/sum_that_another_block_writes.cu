// block=32 grid=2: one block adds to an element, another reads it, adds and writes
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  float* sums = reinterpret_cast<float*>(out);
#ifdef FIXED
  red_global_add_f32(sums + threadIdx.x, 1.0f);
#else
  if (blockIdx.x == 0) red_global_add_f32(sums + threadIdx.x, 1.0f);  // expect: race
  if (blockIdx.x == 1) sums[threadIdx.x] += 1.0f;  // expect: race
#endif
}
