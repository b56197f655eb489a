"""convgen compiles a small language to CUDA convolution kernels."""

__version__ = "0.1.0"
