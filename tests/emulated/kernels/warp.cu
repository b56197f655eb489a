// Votes, shuffles, and matrices to shared memory and back.
extern "C" __global__ __launch_bounds__(32)
void warp(u32* __restrict__ out) {
  extern __shared__ u8 shared_memory[];
  const u32 base = shared_address(shared_memory);
  const u32 lane = threadIdx.x;
  out[lane] = __shfl_sync(0xffffffff, 100 + lane, 5);
  out[32 + lane] = __shfl_up_sync(0xffffffff, lane, 3);
  out[64 + lane] = __shfl_down_sync(0xffffffff, lane, 3, 16);
  out[96 + lane] = __shfl_xor_sync(0xffffffff, lane, 9);
  out[128 + lane] = __ballot_sync(0xffffffff, lane % 3 == 0);
  out[160 + lane] = __any_sync(0xffffffff, lane == 7) * 2 + __all_sync(0xffffffff, lane < 32);
  double wide = lane * 1.5;
  wide = __shfl_xor_sync(0xffffffff, wide, 1);
  out[192 + lane] = u32(wide * 2);
  if (lane < 16) out[256 + lane] = __shfl_sync(0x0000ffff, lane, 15 - lane);

  // registers that hold 8x8 matrices of row * 8 + column, stored as they are and transposed
  u32 r[4];
  for (u32 m = 0; m < 4; ++m) {
    const u32 first = 256 * m + lane / 4 * 8 + lane % 4 * 2;
    r[m] = first | (first + 1) << 16;
  }
  stmatrix_x4(base + 16 * lane, r[0], r[1], r[2], r[3]);
  stmatrix_x4_trans(base + 512 + 16 * lane, r[0], r[1], r[2], r[3]);
  __syncwarp();
  for (u32 i = lane; i < 256; i += 32) out[512 + i] = ld_shared_u32(base + 4 * i);
  u32 back[4], turned[4], one[1], two[2];
  ldmatrix_x4(back, base + 16 * lane);
  ldmatrix_x4_trans(turned, base + 512 + 16 * lane);
  ldmatrix_x1(one, base + 128 + 16 * (lane % 8));
  ldmatrix_x2_trans(two, base + 512 + 16 * (lane % 16));
  u32 same = 1;
  for (u32 m = 0; m < 4; ++m) same &= back[m] == r[m] && turned[m] == r[m];
  out[768 + lane] = same && one[0] == r[1] && two[0] == r[0] && two[1] == r[1];
}
