"""tma_im2col: implicit GEMM on Hopper, fed by TMA's im2col mode."""
