"""mma_wgrad: the gradient of the filter by mma.sync and cp.async, for sm_80 and up."""
