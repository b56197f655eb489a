// Two consumers take tiles in turn over three stages, two k steps a tile.  Without ORDERED nothing keeps a
// consumer from waiting two phases ahead of a stage that the other one consumes: there a parity can't tell the
// phase before from the phase after, and loads do not land in the order in which they were asked for.
constexpr int tiles = 6, k_steps = 2, stages = 3, consumers = 2;
constexpr u32 tile_bytes = 8192, full = stages * tile_bytes, empty = full + 8 * stages, turns = empty + 8 * stages;

extern "C" __global__ __launch_bounds__(384)
void pingpong(const __grid_constant__ TensorMap x_map, float* __restrict__ y) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      mbarrier_init(base + full + 8 * i, 1);
      mbarrier_init(base + empty + 8 * i, 1);
    }
    for (int i = 0; i < consumers; ++i) mbarrier_init(base + turns + 8 * i, 1);
    fence_mbarrier_init();
    mbarrier_arrive(base + turns);  // the first consumer begins
  }
  __syncthreads();

  if (threadIdx.x < 128) {
    for (int i = 0; threadIdx.x == 0 && i < tiles * k_steps; ++i) {
      const int stage = i % stages;
      mbarrier_wait_parity(base + empty + 8 * stage, i / stages & 1 ^ 1);
      mbarrier_arrive_expect_tx(base + full + 8 * stage, tile_bytes);
      tma_load_tile_2d(base + stage * tile_bytes, &x_map, base + full + 8 * stage, 0, 64 * i);
    }
    return;
  }
  const int consumer = threadIdx.x / 128 - 1;
  for (int tile = consumer; tile < tiles; tile += consumers) {
    float d[4];
#ifdef ORDERED
    mbarrier_wait_parity(base + turns + 8 * consumer, tile / consumers & 1);
#endif
    for (int k = 0; k < k_steps; ++k) {
      const int i = tile * k_steps + k, stage = i % stages;
      mbarrier_wait_parity(base + full + 8 * stage, i / stages & 1);
      const u64 address = (base + stage * tile_bytes & 0x3FFFF) >> 4;
      const u64 descriptor = address | u64(1) << 16 | u64(64) << 32 | u64(1) << 62;
      wgmma_fence();
      wgmma_m64n8k16_f32_f16_f16(d, descriptor, descriptor, k);
      wgmma_commit_group();
      wgmma_wait_group<0>();
      if (threadIdx.x % 128 == 0) mbarrier_arrive(base + empty + 8 * stage);
    }
#ifdef ORDERED
    if (threadIdx.x % 128 == 0) mbarrier_arrive(base + turns + 8 * (consumer ^ 1));
#endif
    y[128 * tile + threadIdx.x % 128] = d[0];
  }
}
