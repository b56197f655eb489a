// block=32: a pointer that has lost its const
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  out[threadIdx.x] = 0;
#else
  const_cast<u32*>(in)[threadIdx.x] = 0;  // expect: out of bounds
#endif
}
