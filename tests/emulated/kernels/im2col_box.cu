// One im2col load, one store: the table of pixels that TMA walks.
extern "C" __global__ __launch_bounds__(32)
void im2col_box(const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map,
                int n, int h, int w, int c, int offset_h, int offset_w) {
  extern __shared__ u8 shared_memory[];
  const u32 tile = (shared_address(shared_memory) + 1023) & ~1023u;
  const u32 barrier = tile + TILE_BYTES;
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init();
    mbarrier_arrive_expect_tx(barrier, TILE_BYTES);
    tma_load_im2col_4d(tile, &x_map, barrier, c, w, h, n, u16(offset_w), u16(offset_h));
    mbarrier_wait_parity(barrier, 0);
    tma_store_tile_2d(&y_map, tile, 0, 0);
    bulk_commit_group();
    bulk_wait_group<0>();
  }
}
