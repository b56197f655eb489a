"""What generates kernels: one folder per kernel, the `strategies` that choose among them, and shared parts."""
