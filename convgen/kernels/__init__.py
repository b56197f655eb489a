"""What generates kernels: a folder a kernel, `strategies` that choose among them, and the parts that they share."""
