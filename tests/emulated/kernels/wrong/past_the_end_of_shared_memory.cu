// block=32: the last store begins at the end
#ifdef FIXED
constexpr int words = 8192;
#else
constexpr int words = 8193;
#endif
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  for (int i = threadIdx.x; i < words; i += 32) st_shared_u32(base + 4 * i, 0);  // expect: out of bounds
}
