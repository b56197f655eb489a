"""Writes the convolutions that a network runs as a spec: specs/recent/NAME.conv, each geometry once.

    python benchmarks/trace_network.py sd15_unet vae_decoder     needs torch, and what the network comes from
    python benchmarks/trace_network.py --list

Models are built without weights (on torch's meta device), and run on one image.  Convolutions are seen where torch
dispatches them, so functional ones count, too; zeros that the network puts around an input beforehand become the
convolution's padding.  Layouts are channels-last.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import torch
from torch.utils._python_dispatch import TorchDispatchMode

SPECS = Path(__file__).resolve().parents[1] / "specs" / "recent"
INPUT, FILTER, OUTPUT = ("d", "h", "w"), ("t", "r", "s"), ("o", "p", "q")


@dataclass(frozen=True)
class Network:
    """What a suite is of, in words; its type; the model, and what it is called with for one image."""

    title: str
    dtype: str
    model: Callable[[], torch.nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    method: str = "forward"


@dataclass(frozen=True)
class Geometry:
    """A convolution of one image; `pad` has both sides of each axis."""

    c: int
    k: int
    input: tuple[int, ...]
    filter: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pad: tuple[tuple[int, int], ...]
    groups: int
    images: int = 1
    output: tuple[int, ...] = ()  # of a transposed one

    @property
    def name(self) -> str:
        """c64_k128_r3_28, and what is unusual."""
        unusual = [
            *(f"g{self.groups}" for _ in range(self.groups > 1)),
            *(f"s{_short(self.stride)}" for _ in range(max(self.stride) > 1)),
            *(f"d{_short(self.dilation)}" for _ in range(max(self.dilation) > 1)),
            *("t" for _ in self.output[:1]),
        ]
        return "_".join([f"c{self.c}", f"k{self.k}", f"r{_short(self.filter)}", _short(self.input), *unusual])

    def spec(self, name: str, dtype: str, count: int) -> str:
        rank = len(self.input)
        axes, taps, pixels = INPUT[-rank:], FILTER[-rank:], OUTPUT[-rank:]
        n = f"n={self.images} * n" if self.images > 1 else "n"
        x = ", ".join([n, *_named(axes, self.input), f"c={self.c}"])
        per_group = (self.c if not self.output else self.k) // self.groups
        outside, inside = ("c", "k") if self.output else ("k", "c")
        w = ", ".join([f"{outside}={getattr(self, outside)}", *_named(taps, self.filter), f"{inside}={per_group}"])
        y = ", ".join([n, *(_named(pixels, self.output) if self.output else pixels), "k"])
        lines = [
            f"conv {name} {{" + (f"  # {count} times" if count > 1 else ""),
            f"  input  x: {dtype}[{x}]",
            f"  filter w: {dtype}[{w}]",
            f"  output y: {dtype}[{y}]",
        ]
        if self.output:
            lines.append("  op transposed")
        for word, values, plain in (("stride", self.stride, 1), ("dilation", self.dilation, 1)):
            if set(values) != {plain}:
                lines.append(f"  {word} {values[0] if len({*values}) == 1 else ' '.join(_named(axes, values))}")
        if any(map(any, self.pad)):
            sides = [str(a) if a == b else f"({a}, {b})" for a, b in self.pad]
            lines.append(f"  pad {sides[0] if len({*sides}) == 1 else ' '.join(_named(axes, sides))}")
        if self.groups > 1:
            lines.append(f"  groups {self.groups}")
        return "\n".join([*lines, "}", ""])


def _named(names: tuple[str, ...], values: Any) -> list[str]:
    return [f"{name}={value}" for name, value in zip(names, values, strict=True)]


def _short(values: tuple[int, ...]) -> str:
    return str(values[0]) if len({*values}) == 1 else "x".join(map(str, values))


class Trace(TorchDispatchMode):
    """Counts the convolutions that are dispatched inside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[Geometry] = Counter()
        self._padded: dict[int, tuple[torch.Tensor, torch.Tensor, list[int]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.constant_pad_nd.default and not (args[2] if len(args) > 2 else 0):
            self._padded[id(made)] = made, args[0], args[1]  # all kept: numbers of what is gone are given again
        elif func is torch.ops.aten.convolution.default:
            self._count(made, *args)
        return made

    def _count(
        self, y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: Any, stride: Any, pad: Any, dilation: Any,
        transposed: bool, extra: Any, groups: int,
    ) -> None:  # fmt: skip
        rank = x.dim() - 2
        sides = [(p, p) for p in pad]
        if id(x) in self._padded:
            _, inner, amounts = self._padded[id(x)]
            if min(amounts) >= 0 and len(amounts) <= 2 * rank:
                x = inner
                for i in range(len(amounts) // 2):
                    low, high = sides[-1 - i]
                    sides[-1 - i] = low + amounts[2 * i], high + amounts[2 * i + 1]
        self.found[
            Geometry(
                x.shape[1], y.shape[1], tuple(x.shape[2:]), tuple(w.shape[2:]), tuple(stride) * (rank // len(stride)),
                tuple(dilation), tuple(sides), groups, x.shape[0], tuple(y.shape[2:]) if transposed else (),
            )
        ] += 1  # fmt: skip


def trace(network: Network) -> Counter[Geometry]:
    with torch.device("meta"), torch.no_grad():
        model = network.model().eval()
        with Trace() as found:
            getattr(model, network.method)(*network.inputs())
    return found.found


def suite(network: Network) -> str:
    found = trace(network)
    names: Counter[str] = Counter()
    blocks = []
    for geometry, count in found.items():
        names[geometry.name] += 1
        again = f"_{names[geometry.name]}" if names[geometry.name] > 1 else ""
        blocks.append(geometry.spec(geometry.name + again, network.dtype, count))
    return f"# {network.title}\nlet n = 1\n\n" + "\n".join(blocks)


# ---- the networks ------------------------------------------------------------------------------------


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def vision(name: str, title: str, side: int = 224) -> Network:
    def model() -> torch.nn.Module:
        import torchvision

        backbone = {"weights_backbone": None} if "lab" in name else {}
        with torch.device("cpu"):  # some compute their widths by tensors
            return torchvision.models.get_model(name, weights=None, **backbone).to("meta")

    return Network(f"{title}, from torchvision, {side} x {side}.", "f16", model, lambda: (zeros(1, 3, side, side),))


def diffusers(name: str, **config: Any) -> Callable[[], torch.nn.Module]:
    def model() -> torch.nn.Module:
        import diffusers

        return getattr(diffusers, name)(**config)

    return model


def transformers(name: str, config_name: str, **config: Any) -> Callable[[], torch.nn.Module]:
    def model() -> torch.nn.Module:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config_name)(**config))

    return model


def patches() -> torch.nn.Module:
    """Patch embeddings, whose stride is their filter: ViT-B/16, CLIP ViT-L/14, VideoMAE's tubelets of 2 x 16 x 16."""

    class Patches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vit, self.clip = torch.nn.Conv2d(3, 768, 16, 16), torch.nn.Conv2d(3, 1024, 14, 14)
            self.video = torch.nn.Conv3d(3, 768, (2, 16, 16), (2, 16, 16))

        def forward(self, image: torch.Tensor, clip: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.vit(image), self.clip(image), self.video(clip)

    return Patches()


NETWORKS: dict[str, Network] = {
    "sd15_unet": Network(
        "A step of Stable Diffusion 1.5's U-Net (Rombach et al., 2022): latents of 64 x 64.", "f16",
        diffusers("UNet2DConditionModel", sample_size=64, cross_attention_dim=768),
        lambda: (zeros(1, 4, 64, 64), zeros(1), zeros(1, 77, 768)),
    ),
    "image_vae": Network(
        "Stable Diffusion's image VAE (Rombach et al., 2022), decoding 512 x 512.", "bf16",
        diffusers(
            "AutoencoderKL", block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        ),
        lambda: (zeros(1, 4, 64, 64),), "decode",
    ),
    "video_vae": Network(
        "Wan 2.1's causal video VAE (Wan Team, 2025), decoding 9 frames of 480 x 832.", "bf16",
        diffusers("AutoencoderKLWan"), lambda: (zeros(1, 16, 3, 60, 104),), "decode",
    ),
    "unet3d": Network(
        "A 3-D U-Net with nnU-Net's default widths (Isensee et al., 2021): patches of 128 x 128 x 128.", "f16",
        models.Unet3d, lambda: (zeros(1, 1, 128, 128, 128),),
    ),
    "efficientnet_v2_s": vision("efficientnet_v2_s", "EfficientNetV2-S (Tan and Le, 2021)", 384),
    "resnext50": vision("resnext50_32x4d", "ResNeXt-50 32x4d (Xie et al., 2017)"),
    "regnet_y_3_2gf": vision("regnet_y_3_2gf", "RegNetY-3.2GF (Radosavovic et al., 2020)"),
    "deeplabv3_resnet50": vision("deeplabv3_resnet50", "DeepLabV3 on ResNet-50 (Chen et al., 2017)", 520),
    "yolov8s": Network(
        "YOLOv8-s (Jocher et al., 2023), 640 x 640.", "f16", models.Yolov8s, lambda: (zeros(1, 3, 640, 640),)
    ),
    "hifi_gan": Network(
        "HiFi-GAN's V1 generator (Kong et al., 2020): 256 frames of 80 mel bands.", "f16",
        transformers("FastSpeech2ConformerHifiGan", "FastSpeech2ConformerHifiGanConfig", normalize_before=False),
        lambda: (zeros(1, 256, 80),),
    ),
    "wav2vec2": Network(
        "wav2vec 2.0's feature encoder and positions (Baevski et al., 2020): one second at 16 kHz.", "f16",
        transformers("Wav2Vec2Model", "Wav2Vec2Config"), lambda: (zeros(1, 16000),),
    ),
    "patch_embeddings": Network(
        "Patch embeddings of ViT-B/16 (Dosovitskiy et al., 2021), CLIP ViT-L/14 (Radford et al., 2021) and VideoMAE "
        "(Tong et al., 2022).", "f16", patches, lambda: (zeros(1, 3, 224, 224), zeros(1, 3, 16, 224, 224)),
    ),
}  # fmt: skip


def main(arguments: argparse.Namespace) -> None:
    if arguments.list or not arguments.networks:
        print("\n".join(f"{name:20} {network.title}" for name, network in NETWORKS.items()))
    for name in arguments.networks:
        text = suite(NETWORKS[name])
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"{name}.conv").write_text(text, encoding="utf-8")
        print(f"{name}: {text.count('conv ') - text.count('convol')} convolutions")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[[], *NETWORKS], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="the networks that there are")
    parser.add_argument("--out", type=Path, default=SPECS, metavar="DIR", help="where specs go (specs/recent)")
    main(parser.parse_args())
