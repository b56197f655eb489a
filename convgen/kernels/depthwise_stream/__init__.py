"""depthwise_stream: one filter a channel, on rows of x that pass through shared memory by TMA."""
