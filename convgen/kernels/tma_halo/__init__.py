"""tma_halo: the input tile with its halo stays in shared memory and serves every tap; for few channels (sm_90a)."""
