// block=64 dependent=1: what this kernel overwrites, the launch before may still be reading
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
#ifdef FIXED
  griddepcontrol_wait();
#endif
  out[threadIdx.x] = threadIdx.x;  // expect: launch before
}
