// block=160: the last warp is no warpgroup
#ifdef FIXED
constexpr int threads = 128;
#else
constexpr int threads = 160;
#endif
extern "C" __global__ __launch_bounds__(160)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  if (threadIdx.x < threads) setmaxnreg_dec<40>();  // expect: registers
}
