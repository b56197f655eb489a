// block=32
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  const int divisor = int(threadIdx.x) + 1;
#else
  const int divisor = int(threadIdx.x);
#endif
  out[threadIdx.x] = 100 / divisor;  // expect: arithmetic
}
