"""direct: one output per thread, or a few along a channel dim.  Serves every operator, layout and type."""
