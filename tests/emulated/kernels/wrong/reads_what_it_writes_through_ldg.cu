// block=32: __ldg is for what no thread writes while the kernel runs
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  out[threadIdx.x] = __ldg(in + threadIdx.x);
  __syncwarp();
#ifdef FIXED
  out[32 + threadIdx.x] = out[threadIdx.x ^ 1];
#else
  out[32 + threadIdx.x] = __ldg(out + (threadIdx.x ^ 1));  // expect: race
#endif
}
