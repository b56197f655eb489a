"""Makes an image decoder ready for inference: the one of Stable Diffusion's autoencoder, with random weights.

    python examples/pytorch_vae_decoder.py --channels 512 --side 64

Each of its three upsamplings is folded into the convolution behind it, where that is faster: no upsampled image is
written, and the convolution takes 2x2 taps instead of 3x3.  Needs PyTorch; without a GPU it runs on the CPU by aten.
"""

from __future__ import annotations

import argparse

import torch

import convgen.torch

nn, TF = torch.nn, torch.nn.functional


def conv(c: int, k: int, taps: int = 3) -> nn.Module:
    return nn.Conv2d(c, k, taps, padding=taps // 2)


class Residual(nn.Module):
    """Twice GroupNorm, silu and a convolution, added to the input."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(32, c), conv(c, k)
        self.norm_2, self.conv_2 = nn.GroupNorm(32, k), conv(k, k)
        self.shortcut = nn.Identity() if c == k else conv(c, k, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv_1(TF.silu(self.norm_1(x)))
        return self.shortcut(x) + self.conv_2(TF.silu(self.norm_2(y)))


class Attention(nn.Module):
    """Of all pixels to all pixels."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.query_key_value, self.out = nn.GroupNorm(32, c), nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        y = TF.scaled_dot_product_attention(*self.query_key_value(pixels).chunk(3, -1))
        return x + self.out(y).transpose(1, 2).reshape(x.shape)


class Upsample(nn.Module):
    """Nearest, by two, and a convolution."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv = conv(c, c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(TF.interpolate(x, scale_factor=2, mode="nearest"))


def decoder(channels: int) -> nn.Module:
    """From latents (n, 4, h, w) to images (n, 3, 8 h, 8 w)."""
    blocks = [conv(4, 4, 1), conv(4, channels), Residual(channels, channels), Attention(channels)]
    blocks.append(Residual(channels, channels))
    c = channels
    for level, k in enumerate((channels, channels, channels // 2, channels // 4)):
        blocks += [Upsample(c)] if level else []
        blocks += [Residual(c, k), Residual(k, k), Residual(k, k)]
        c = k
    return nn.Sequential(*blocks, nn.GroupNorm(32, c), nn.SiLU(), conv(c, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=512, help="of the first blocks; a multiple of 128")
    parser.add_argument("--side", type=int, default=64, help="of the latents; the image's is eight times that")
    options = parser.parse_args()
    if options.channels < 128 or options.channels % 128:
        parser.error(f"--channels {options.channels}: GroupNorm makes 32 groups of a quarter of them: multiples of 128")
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    model = decoder(options.channels).eval().to(device, dtype, memory_format=torch.channels_last)
    z = torch.randn(1, 4, options.side, options.side, device=device, dtype=dtype)

    fast = convgen.torch.optimize(model, z, inductor=device == "cuda")
    print(fast.report)
    with torch.no_grad():
        expected = model(z)
        error = (fast(z) - expected).norm() / expected.norm()
    print(f"relative difference from the model: {error:.1e}")


if __name__ == "__main__":
    main()
