// block=48: the second warp has 16 threads, and stmatrix is of 32
extern "C" __global__ void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
#ifdef FIXED
  if (threadIdx.x < 32)
#endif
    stmatrix_x4(shared_address(shared_memory) + threadIdx.x * 16, 1, 2, 3, 4);  // expect: divergence
  out[threadIdx.x] = in[threadIdx.x];
}
