// block=256: the consumer asks for more than the producer leaves
#ifdef FIXED
constexpr int producer = 240, consumer = 256;
#else
constexpr int producer = 248, consumer = 256;
#endif
extern "C" __global__ __launch_bounds__(256)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  if (threadIdx.x < 128) {
    setmaxnreg_dec<producer>();
  } else {
    setmaxnreg_inc<consumer>();  // expect: deadlock
  }
}
