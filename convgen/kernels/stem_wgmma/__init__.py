"""stem_wgmma: first layers on Hopper.  As stem_mma, but windows go through registers into wgmma."""
