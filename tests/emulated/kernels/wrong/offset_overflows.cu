// block=32: the offset of element 2^31 in 32 bits
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  const long long row = threadIdx.x;
#else
  const int row = threadIdx.x;
#endif
  out[threadIdx.x] = row * (1 << 27) > 1 << 30;  // expect: overflow
}
