"""im2col: the lowered matrix in memory, and a GEMM by cuBLAS."""
