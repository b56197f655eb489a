// block=384: for two blocks on an SM, a thread is compiled for half of the registers
#ifdef FIXED
constexpr int blocks = 1;
#else
constexpr int blocks = 2;
#endif
extern "C" __global__ __launch_bounds__(384, blocks)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  if (threadIdx.x < 128) {
    setmaxnreg_dec<40>();
  } else {
    setmaxnreg_inc<232>();  // expect: deadlock
  }
}
