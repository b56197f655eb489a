// block=32: local arrays of a megabyte
#ifdef FIXED
constexpr int words = 1 << 10;
#else
constexpr int words = 1 << 18;
#endif
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {  // expect: compile
  volatile u32 v[words];
  for (int i = words - 1; i >= 0; i -= 64) v[i] = i;
  out[threadIdx.x] = v[threadIdx.x * 4 + 3];
}  // expect: compile
