// block=64 dependent=1: launched behind another kernel, this one may run before that has written
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  if (threadIdx.x == 0) griddepcontrol_wait();  // on behalf of all, with the barrier
#endif
  __syncthreads();
  const u32 value = in[threadIdx.x];  // expect: launch before
  griddepcontrol_wait();
  out[threadIdx.x] = value;
}
