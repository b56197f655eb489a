"""direct: one thread an output, or a few along a channel dim.  Serves every operator, layout and type."""
