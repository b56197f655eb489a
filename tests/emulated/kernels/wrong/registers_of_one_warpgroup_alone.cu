// block=384: compiled for what one warpgroup takes, and another one keeps what it started with
#ifdef FIXED
constexpr int taking = 2;
#else
constexpr int taking = 1;
#endif
extern "C" __global__ __launch_bounds__(384)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  const int warpgroup = threadIdx.x / 128;
  if (warpgroup == 2) setmaxnreg_dec<24>();
  if (warpgroup < taking) setmaxnreg_inc<240>();  // expect: registers
}
