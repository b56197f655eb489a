// block=32: the epilogue tile is written again before the store has read it
extern "C" __global__ __launch_bounds__(32)
void wrong(const __grid_constant__ TensorMap map, const u32* in, u32* out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = (shared_address(shared_memory) + 1023) & ~1023u;
  for (u32 turn = 0; turn < 2; ++turn) {  // of which the second stores nothing: its box lies behind the tensor
#ifdef FIXED
    if (threadIdx.x == 0) bulk_wait_group_read<0>();
#endif
    __syncwarp();
    for (u32 i = threadIdx.x; i < 512; i += 32) {
      st_shared_v4_u32(base + 16 * i, Vec4{turn, turn, turn, turn});  // expect: overwritten while read
    }
    fence_proxy_async_shared();
    __syncwarp();
    if (threadIdx.x == 0) {
      tma_store_tile_2d(&map, base, 0, 64 * turn);
      bulk_commit_group();
    }
  }
  if (threadIdx.x == 0) bulk_wait_group<0>();
}
