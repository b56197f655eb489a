"""A block that cuDNN cannot fuse: convolution, bias, gelu, a scale for each image and channel, a residual.

    python examples/pytorch_fused_block.py

Each is one kernel: x is read once, and the sums never leave the registers before they are finished.  Needs PyTorch;
without a GPU it runs on the CPU by aten.
"""

from __future__ import annotations

import torch

import convgen.torch

TF = torch.nn.functional


class Block(torch.nn.Module):
    """x + scale * gelu(conv(x)), where scale has one value for each image and channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x + scale * TF.gelu(self.conv(x))


def main() -> None:
    device, dtype = ("cuda", torch.float16) if torch.cuda.is_available() else ("cpu", torch.float32)
    options = dict(device=device, dtype=dtype)
    block = Block(128).to(**options).eval()
    x = torch.randn(8, 128, 28, 28, **options).to(memory_format=torch.channels_last)
    scale = torch.rand(8, 128, 1, 1, **options)

    fast = convgen.torch.optimize(block, (x, scale), inductor=False)
    print(fast.report)
    with torch.no_grad():
        expected = block(x, scale)
        print(f"relative difference: {(fast(x, scale) - expected).norm() / expected.norm():.1e}")

    layer = convgen.torch.Conv2d.from_module(block.conv, activation="gelu")  # a layer alone, for training, too
    print(layer, tuple(layer(x).shape))


if __name__ == "__main__":
    main()
