"""mma_gemm: implicit GEMM on mma.sync, tiles gathered by software addresses: any problem."""
