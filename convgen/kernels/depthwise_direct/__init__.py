"""depthwise_direct: one filter a channel, from global memory on the ordinary cores; any layout and target."""
