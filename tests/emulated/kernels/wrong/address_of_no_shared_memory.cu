// block=32: begins behind what the launch asks for
#ifdef FIXED
constexpr int first = 0;
#else
constexpr int first = 1 << 20;
#endif
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory + first);  // expect: out of bounds
  st_shared_u32(base + 4 * threadIdx.x, 0);
}
