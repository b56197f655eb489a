// block=32 grid=2: both blocks write an element: that they count orders nothing
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  const int elements = 32;
#else
  const int elements = 31;
#endif
  atomicAdd(out + 1024, 1u);
  out[blockIdx.x * elements + threadIdx.x] = in[threadIdx.x];  // expect: race
}
