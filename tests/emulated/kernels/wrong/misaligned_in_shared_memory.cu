// block=32: 16 bytes at a multiple of 8
#ifdef FIXED
constexpr int stride = 16;
#else
constexpr int stride = 24;
#endif
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  st_shared_v4_u32(shared_address(shared_memory) + stride * threadIdx.x, Vec4{1, 2, 3, 4});  // expect: misaligned
}
