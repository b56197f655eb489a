// block=32 cluster=2: compiled for blocks that are launched alone
#ifdef FIXED
constexpr int cluster = 2;
#else
constexpr int cluster = 1;
#endif
extern "C" __global__ __cluster_dims__(cluster, 1, 1) void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {  // expect: launch
  out[32 * blockIdx.x + threadIdx.x] = in[cluster_ctarank()];
}
