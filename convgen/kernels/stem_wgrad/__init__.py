"""stem_wgrad: the gradient of a first layer's filter on Hopper."""
