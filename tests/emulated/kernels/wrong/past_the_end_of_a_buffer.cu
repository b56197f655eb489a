// block=128: an element too many
#ifdef FIXED
constexpr int extent = 4096;
#else
constexpr int extent = 4097;
#endif
extern "C" __global__ __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  u32 sum = 0;
  for (int i = threadIdx.x; i < extent; i += 128) {
    sum += in[i];  // expect: out of bounds
  }
  out[threadIdx.x] = sum;
}
