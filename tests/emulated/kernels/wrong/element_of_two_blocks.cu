// block=32 grid=2: both blocks write an element, and no barrier is theirs
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  const int elements = 32;
#else
  const int elements = 31;
#endif
  out[blockIdx.x * elements + threadIdx.x] = in[threadIdx.x];  // expect: race
}
