"""tma_plain: an implicit GEMM on TMA im2col loads and wgmma that reads from top to bottom."""
