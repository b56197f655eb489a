"""depthwise_direct: one filter per channel, from global memory on the ordinary cores; any layout and target."""
