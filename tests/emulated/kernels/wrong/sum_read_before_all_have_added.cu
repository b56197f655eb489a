// block=64: two threads add to each element, and one of them reads it
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  float* sums = reinterpret_cast<float*>(out);
  if (threadIdx.x < 32) sums[threadIdx.x] = 1.0f;
  __syncthreads();
  red_global_add_f32(sums + threadIdx.x % 32, 1.0f);
#ifdef FIXED
  __syncthreads();
#endif
  if (threadIdx.x < 32) sums[threadIdx.x] *= 2.0f;  // expect: race
}
