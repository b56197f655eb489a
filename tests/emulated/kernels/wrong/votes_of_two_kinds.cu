// block=32: half of the lanes ask whether all, half whether any
extern "C" __global__ void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  const int agreed = __all_sync(0xffffffff, in[threadIdx.x] < 4096);
#else
  const int agreed = threadIdx.x % 2 ? __all_sync(0xffffffff, in[threadIdx.x] < 4096) : __any_sync(0xffffffff, 1);  // expect: divergence
#endif
  out[threadIdx.x] = agreed;
}
