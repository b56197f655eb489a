// block=64 grid=4: the last block to come reads what others have written before they counted, and did not publish
extern "C" __global__ __launch_bounds__(64)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 arrived = shared_address(shared_memory);
  u32 *const partials = out + 64, *const counter = out + 1024;
  float* const total = reinterpret_cast<float*>(out + 512);
  partials[64 * blockIdx.x + threadIdx.x] = in[threadIdx.x];
  atomicAdd(total, float(in[threadIdx.x]));
#ifdef FIXED
  __threadfence();
#endif
  __syncthreads();
  if (threadIdx.x == 0) st_shared_u32(arrived, atomicAdd(counter, 1u));
  __syncthreads();
  if (ld_shared_u32(arrived) != gridDim.x - 1) return;
  u32 sum = 0;
  for (int i = 0; i < int(gridDim.x); ++i) sum += partials[64 * i + threadIdx.x];  // expect: race
  out[threadIdx.x] = sum;
  if (threadIdx.x != 0) return;
  if (*total != 4 * 2016.0f) __trap();
  *counter = 0;
}
