// block=256: compiled for half of the threads
#ifdef FIXED
constexpr int threads = 256;
#else
constexpr int threads = 128;
#endif
extern "C" __global__ __launch_bounds__(2 * (threads / 2)) void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {  // expect: launch
  out[threadIdx.x] = in[threadIdx.x];
}
