// block=32: half of the lanes shuffle up, half down, and they meet
extern "C" __global__ void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  u32 v = in[threadIdx.x];
#ifdef FIXED
  v = __shfl_up_sync(0xffffffff, v, 33);  // by one: five bits count
  if (threadIdx.x > 0 && v != in[threadIdx.x - 1]) __trap();
#else
  v = threadIdx.x % 2 ? __shfl_up_sync(0xffffffff, v, 1) : __shfl_down_sync(0xffffffff, v, 1);  // expect: divergence
#endif
  out[threadIdx.x] = v;
}
