"""stem_mma: first layers.  Rows of x in shared memory serve the windows of few channels, multiplied by mma.sync."""
