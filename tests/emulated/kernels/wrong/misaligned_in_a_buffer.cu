// block=32: two elements by one load, at an odd one
#ifdef FIXED
constexpr int first = 2;
#else
constexpr int first = 1;
#endif
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  const u64 pair = *reinterpret_cast<const u64*>(in + 2 * threadIdx.x + first);  // expect: misaligned
  out[threadIdx.x] = u32(pair);
}
