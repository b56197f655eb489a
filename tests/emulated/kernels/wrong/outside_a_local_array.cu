// block=32: the ninth of eight
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  u32 v[8] = {};
#ifdef FIXED
  const int last = 7;
#else
  const int last = 8;
#endif
  for (int i = 0; i <= last; ++i) {
    v[i] = in[i];  // expect: out of bounds
  }
  out[threadIdx.x] = v[threadIdx.x % 8];
}
