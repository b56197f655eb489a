"""winograd_fused: F(2, 3) along a row, transformed between tma_halo's halo tile and the tensor cores (sm_90a)."""
