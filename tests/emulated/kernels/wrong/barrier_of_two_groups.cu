// block=128: two groups of threads, each to meet by itself, use one barrier, which can't tell them apart
extern "C" __global__ __launch_bounds__(128)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  if (threadIdx.x < 64) {
    bar_sync<1, 64>();
  } else {
    bar_sync<2, 64>();
  }
#else
  bar_sync<1, 64>();  // expect: barrier
#endif
}
