"""Makes torchvision's ResNet-50 ready for inference, and says what became of each layer.

    python examples/pytorch_resnet50.py --batch 8

Needs PyTorch and torchvision; without a GPU it runs on the CPU, where the layers are aten's.
"""

from __future__ import annotations

import argparse

import torch

import convgen.torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    batch = parser.parse_args().batch
    try:
        import torchvision
    except ModuleNotFoundError:
        parser.error("torchvision is not installed: python -m pip install torchvision")
    device, dtype = ("cuda", torch.float16) if torch.cuda.is_available() else ("cpu", torch.float32)
    model = torchvision.models.resnet50(weights=None).eval().to(device, dtype, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, 224, 224, device=device, dtype=dtype).to(memory_format=torch.channels_last)

    fast = convgen.torch.optimize(model, x, inductor=device == "cuda")
    print(fast.report)
    with torch.no_grad():
        expected = model(x)
        error = (fast(x) - expected).norm() / expected.norm()
    print(f"relative difference from the model: {error:.1e}")


if __name__ == "__main__":
    main()
