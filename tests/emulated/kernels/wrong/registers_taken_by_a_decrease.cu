// block=256: setmaxnreg in the wrong direction takes what nobody gave back
#ifdef FIXED
#define SETMAXNREG setmaxnreg_dec<40>
#else
#define SETMAXNREG setmaxnreg_dec<256>
#endif
extern "C" __global__ __launch_bounds__(256)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  if (threadIdx.x < 128) {
    SETMAXNREG();  // expect: registers
  } else {
    setmaxnreg_inc<248>();
  }
}
