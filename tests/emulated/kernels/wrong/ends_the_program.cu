// block=32: an instruction that no kernel goes on behind
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifndef FIXED
  if (threadIdx.x == 7) __builtin_trap();  // expect: trap
#endif
  out[threadIdx.x] = in[threadIdx.x];
}
