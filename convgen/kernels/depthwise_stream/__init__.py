"""depthwise_stream: one filter per channel, on rows of x that pass through shared memory by TMA."""
