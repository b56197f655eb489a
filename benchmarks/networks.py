"""Whole networks: eager cuDNN, torch.compile and convgen.torch.optimize, each under a CUDA graph, timed in turn.

    python benchmarks/networks.py --networks resnet50 --batches 1 8 64 256 --out networks.json
    python benchmarks/networks.py --budget 540 --out networks.json          # all of them, as far as the time goes
    python benchmarks/networks.py --networks vgg16 --prepare                # one process for each network, at once
    python benchmarks/networks.py --networks resnet50 --batches 64 --specs out   # what `convgen tune` may tune
    python benchmarks/networks.py --networks resnet18 r3d_18 --batches 8    # any torchvision model of images or clips
    python benchmarks/networks.py --networks timm/resnest50d --batches 8    # any of timm

Weights are random, BatchNorm's statistics those of random images, tensors float16 with channels last (bfloat16 for
diffusers' models), cudnn.benchmark is on, results are compared with a float64 run on the first images.  Rows are
written as they come, so that a run that is cut off leaves what it has; with --append those of the file stay, and what
they have is not measured again.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import records
from at_hand import need_gpu

from convgen.bench.backend import TorchBackend
from convgen.bench.measure import Captured, time_in_turn

#: Images that the float64 run takes.
_CHECKED = 4


@dataclass(frozen=True)
class Network:
    """A network: what makes it, and of its input the batches, the shape but for the batch, and the type."""

    make: Callable[[], Any]
    batches: tuple[int, ...] = (1, 8, 64)
    shape: tuple[int, ...] = (3, 224, 224)
    dtype: str = "float16"
    least: float = 1.4  # the aim: times torch.compile


def _of_torchvision(name: str, **options: Any) -> Callable[[], Any]:
    def make() -> Any:
        import torchvision

        return torchvision.models.get_model(name, weights=None, **options)

    return make


def _of_timm(name: str) -> Network:
    """With the input that its weights were trained with."""
    try:
        import timm
    except ImportError:
        raise SystemExit(f"networks.py: timm/{name} needs timm: python -m pip install timm") from None
    if not timm.is_model(name):
        raise SystemExit(f"networks.py: timm has no model {name}")
    return Network(lambda: timm.create_model(name, pretrained=False), shape=timm.get_pretrained_cfg(name).input_size)


def _written_out(name: str) -> Callable[[], Any]:
    """A class of models/."""

    def make() -> Any:
        import models

        return getattr(models, name)()

    return make


def _unet() -> Any:
    """Stable Diffusion 1.5's, with random weights."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=64, cross_attention_dim=768, attention_head_dim=8, block_out_channels=(320, 640, 1280, 1280)
    )


def _vae_decoder() -> Any:
    """Of Stable Diffusion 1.5's autoencoder, with random weights."""
    from diffusers import AutoencoderKL

    channels = (128, 256, 512, 512)
    model = AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=channels, layers_per_block=2, latent_channels=4, sample_size=512,
    )  # fmt: skip
    return model.decoder


NETWORKS: dict[str, Network] = {
    "resnet50": Network(_of_torchvision("resnet50"), (1, 8, 64, 256), least=1.5),
    **{
        name: Network(_of_torchvision(name))
        for name in (
            "alexnet", "vgg16", "densenet121", "mobilenet_v2", "efficientnet_v2_s", "convnext_tiny", "resnext50_32x4d",
            "regnet_y_3_2gf",
        )
    },
    "googlenet": Network(_of_torchvision("googlenet", init_weights=False, aux_logits=False)),
    "deeplabv3_resnet50": Network(
        _of_torchvision("deeplabv3_resnet50", weights_backbone=None), (1, 8), (3, 520, 520)
    ),
    "unet": Network(_written_out("Unet"), (1, 8), (3, 512, 512)),
    "unet3d": Network(_written_out("Unet3d"), (1, 2), (1, 128, 128, 128)),
    "yolov8s": Network(_written_out("Yolov8s"), (1, 8), (3, 640, 640)),
    "esrgan": Network(_written_out("Esrgan"), (1, 8), (3, 128, 128)),
    "dcgan": Network(_written_out("Dcgan"), (8, 64), (100, 1, 1)),
    "hifi_gan": Network(_written_out("HifiGan"), (1, 8), (80, 256)),
    "wav2vec2_features": Network(_written_out("Wav2vec2Features"), (1, 8), (1, 80000)),
    "cyclegan": Network(_written_out("CycleGan"), (1, 8), (3, 256, 256)),
    "edsr": Network(_written_out("Edsr"), (1, 8), (3, 256, 256)),
    "conv_tasnet": Network(_written_out("ConvTasnet"), (1, 8), (1, 32000)),
    "wavenet": Network(_written_out("Wavenet"), (1, 8), (256, 16000)),
    "nafnet": Network(_written_out("Nafnet"), (1, 8), (3, 256, 256)),
    "alphazero": Network(_written_out("AlphaZero"), (8, 64), (17, 19, 19)),
    "cifar_resnet18": Network(_written_out("CifarResnet18"), (8, 128), (3, 32, 32)),
    "pix2pix": Network(_written_out("Pix2pix"), (1, 8), (3, 256, 256)),
    "convlstm": Network(_written_out("ConvLstm"), (8,), (10, 64, 64)),
    "ecapa": Network(_written_out("EcapaTdnn"), (1, 8), (80, 300)),
    "convnext_v2": Network(_written_out("ConvnextV2"), (8,)),
    "repvgg": Network(_written_out("Repvgg"), (8,)),
    "stylegan2": Network(_written_out("Stylegan2"), (8,), (512, 1, 1)),
    "hrnet": Network(_written_out("Hrnet"), (8,), (3, 256, 256)),
    "segformer_b0": Network(_written_out("Segformer"), (1, 8), (3, 512, 512)),
    "sd15_unet": Network(_unet, (2,), (4, 64, 64), "bfloat16", least=1.1),
    "sd15_vae_decoder": Network(_vae_decoder, (1,), (4, 64, 64), "bfloat16", least=1.2),
}  # fmt: skip
#: Inputs of torchvision's models that take others than 224x224, or clips than 112x112, by the start of their names.
SHAPES = {
    "inception": (3, 299, 299), "fcn": (3, 520, 520), "lraspp": (3, 520, 520), "deeplab": (3, 520, 520),
    **dict.fromkeys(("s3d", "mvit", "swin3d"), (3, 16, 224, 224)),
}  # fmt: skip
CLIP = (3, 16, 112, 112)
#: Images that BatchNorm's statistics are taken from.
_SAMPLE = 8


def _network(name: str) -> Network:
    """Of the table, of timm, or of torchvision's models that give one tensor for images or clips."""
    if name in NETWORKS:
        return NETWORKS[name]
    if name.startswith("timm/"):
        return _of_timm(name.removeprefix("timm/"))
    import torchvision

    try:
        builder = torchvision.models.get_model_builder(name)
    except ValueError:
        known = ", ".join(NETWORKS)
        raise SystemExit(f"networks.py: {name} is none of {known}, of torchvision's models, or timm/NAME") from None
    options = {key: None for key in ("weights_backbone",) if key in inspect.signature(builder).parameters}
    clips = ".video" in builder.__module__
    usual = CLIP if clips else (3, 224, 224)
    shape = next((s for key, s in SHAPES.items() if name.startswith(key)), usual)
    return Network(_of_torchvision(name, **options), shape=shape)


def _format(rank: int) -> Any:
    """Channels last, where PyTorch has it."""
    import torch

    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(rank, torch.contiguous_format)


def _inputs(name: str, network: Network, batch: int) -> tuple[Any, ...]:
    """The model's arguments."""
    import torch

    dtype = getattr(torch, network.dtype)
    image = torch.randn((batch, *network.shape), device="cuda").to(dtype)
    image = image.to(memory_format=_format(image.dim()))
    if name == "sd15_unet":
        text = torch.randn((batch, 77, 768), device="cuda").to(dtype)
        return image, torch.full((batch,), 500, device="cuda"), text
    return (image,)


def _tensor(result: Any) -> Any:
    """The one that counts of what a model gives."""
    if isinstance(result, dict):
        return result.get("out", next(iter(result.values())))
    return result[0] if isinstance(result, tuple | list) else getattr(result, "sample", result)


def captured(model: Any, inputs: tuple[Any, ...], backend: TorchBackend) -> tuple[Captured, Any]:
    """A forward pass as a CUDA graph, and the tensor that it writes."""
    torch = backend.torch
    with backend.stream():
        for _ in range(3):  # everything compiles, tunes and allocates
            model(*inputs)
        torch.cuda.synchronize()
        held: list[Any] = []
        graph = backend.capture(lambda: held.append(_tensor(model(*inputs))))
        ms = min(backend.replay(graph, 3))
    return Captured(graph, 1, ms, lambda _: (held, inputs)), held[0]


def exact_result(model: Any, inputs: tuple[Any, ...]) -> Any:
    """The float64 result for the first images."""
    import torch

    with torch.no_grad():
        double = copy.deepcopy(model).double()
        first = [t[:_CHECKED].double() if t.is_floating_point() else t[:_CHECKED] for t in inputs]
        return _tensor(double(*first))


def error_beside(found: Any, exact: Any) -> float:
    """Relative L2 error."""
    return float((found[: len(exact)].double() - exact).norm() / exact.norm())


def model_and_inputs(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """The model and its arguments, with nothing compiled yet."""
    import torch

    network = _network(name)
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = network.make().eval().cuda()
    _draw_zeros(model)
    _calibrate(model, network)
    model = model.to(getattr(torch, network.dtype)).to(memory_format=_format(1 + len(network.shape)))
    return model, _inputs(name, network, batch)


def _draw_zeros(model: Any) -> None:
    """Gives linear layers of zeros random weights: of vision transformers' last ones, results say nothing."""
    import torch

    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and not module.weight.any():
            torch.nn.init.normal_(module.weight, std=0.02)


def _calibrate(model: Any, network: Network) -> None:
    """Gives BatchNorm the statistics of random images: with a new model's, deep networks' activations vanish in f16."""
    import torch

    called = copy.deepcopy(model)  # LeViT keeps what its first call computed, in that call's type
    norms = [module for module in called.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    for module in norms:
        module.momentum = None  # the mean of all batches, of which there is one
        module.reset_running_stats()
        module.train()
    if norms:
        with torch.no_grad():
            called(torch.randn((_SAMPLE, *network.shape), device="cuda"))
        model.load_state_dict(called.state_dict())


def prepare(name: str, batch: int) -> None:
    """Compiles what a row needs, for the caches."""
    import torch

    import convgen.torch as ct

    model, inputs = model_and_inputs(name, batch)
    with torch.no_grad():
        torch.compile(model, dynamic=False)(*inputs)
        ct.optimize(model, inputs)(*inputs)


def measure(name: str, batch: int, backend: TorchBackend, folder: Path | None) -> dict[str, Any]:
    """One row: milliseconds of a pass, errors, seconds of preparing, the report."""
    import convgen.torch as ct

    torch, network = backend.torch, _network(name)
    model, inputs = model_and_inputs(name, batch)
    exact = exact_result(model, inputs)
    compiled = torch.compile(model, dynamic=False)
    found, graphs, prepared = {}, {}, {}
    with torch.no_grad():
        for entrant, make in {
            "eager": lambda: model,
            "compile": lambda: compiled,
            "convgen": lambda: ct.optimize(model, inputs),
        }.items():
            start = time.monotonic()
            made = make()
            graphs[entrant], result = captured(made, inputs, backend)
            prepared[entrant] = time.monotonic() - start
            with backend.stream():
                graphs[entrant].graph.replay()
            found[entrant] = error_beside(result, exact)
        start = time.monotonic()
        again = ct.optimize(model, inputs)
        again_s = time.monotonic() - start
    timings = dict(zip(graphs, time_in_turn([[graph] for graph in graphs.values()], backend), strict=True))
    if folder:
        _write_specs(again.report, folder / f"{name}_n{batch}")
    ms = {entrant: round(timing.us / 1000, 4) for entrant, timing in timings.items()}
    return {
        "network": name, "batch": batch, "ms": ms, "x": round(ms["compile"] / ms["convgen"], 3), "aim": network.least,
        "error": {entrant: float(f"{e:.3g}") for entrant, e in found.items()},
        "prepare_s": {entrant: round(s, 1) for entrant, s in prepared.items()} | {"convgen_again": round(again_s, 1)},
        "layers": [vars(row) for row in again.report], "notes": again.report.notes,
    }  # fmt: skip


def _write_specs(report: Any, folder: Path) -> None:
    """Each distinct convolution with its epilogue, in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, text in enumerate(dict.fromkeys(row.spec for row in report if row.spec)):
        (folder / f"{i:02}.conv").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=tuple(NETWORKS), metavar="NAME", help="(default: the table's)")
    parser.add_argument("--batches", nargs="+", type=int, help="(default: each network's own)")
    parser.add_argument("--budget", type=float, default=1e9, metavar="SECONDS", help="start no row after this time")
    parser.add_argument("--out", type=Path, help="JSON of all rows")
    parser.add_argument("--append", action="store_true", help="keep the rows that the file has, and measure the others")
    parser.add_argument("--prepare", action="store_true", help="time nothing: compile, for the caches of a later run")
    parser.add_argument("--specs", type=Path, metavar="DIR", help="write the convolutions' specs there")
    arguments = parser.parse_args()
    need_gpu("torch", "torchvision")
    start = time.monotonic()
    backend = TorchBackend()
    backend.torch.backends.cudnn.benchmark = True
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.append and arguments.out.exists() else []
    known = {(row["network"], row["batch"]) for row in rows}
    for name in arguments.networks:
        for batch in arguments.batches or _network(name).batches:
            if (name, batch) in known or time.monotonic() - start > arguments.budget:
                continue
            try:
                if arguments.prepare:
                    prepare(name, batch)
                    print(f"{name} n={batch}: compiled after {time.monotonic() - start:.0f} s", flush=True)
                    continue
                row = measure(name, batch, backend, arguments.specs)
            except (ImportError, RuntimeError) as error:  # diffusers is not installed; memory is short
                print(f"{name} n={batch}: {type(error).__name__}: {error}", flush=True)
                continue
            rows.append(row)
            print(
                f"{name} n={batch}: {row['ms']} ms, {row['x']}x, error {row['error']}, {row['prepare_s']} s", flush=True
            )
            if arguments.out:
                records.write(arguments.out, rows=rows)
            backend.release()


if __name__ == "__main__":
    main()
