// block=128: an element before the first
extern "C" __global__ __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifndef FIXED
  --out;
#endif
  out[threadIdx.x] = 1;  // expect: out of bounds
}
