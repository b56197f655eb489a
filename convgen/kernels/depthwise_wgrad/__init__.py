"""depthwise_wgrad: the gradient of depthwise filters on the ordinary cores, one pass over x and y's gradient."""
