"""tma_wgrad: the gradient of the filter on Hopper, fed by TMA's im2col mode."""
