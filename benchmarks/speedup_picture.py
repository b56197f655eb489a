"""Draws README's picture: the speedup of each network, from the results.

    python benchmarks/speedup_picture.py --out docs/speedup_h200.svg

Whole networks are beside torch.compile, the geometric mean of a network's convolution layers beside cuDNN.  A network
whose random weights overflow or vanish in float16 is left out: nothing says that its results are right.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from convgen.bench.results import geomean
from convgen.picture import Picture

RESULTS = Path(__file__).parent / "results"
BATCH = 8
#: As results name them, and as people do; networks of torchvision, then suites.
NETWORKS = {
    "resnet18": "ResNet-18", "resnet50": "ResNet-50", "wide_resnet50_2": "Wide ResNet-50-2",
    "resnext50_32x4d": "ResNeXt-50", "regnet_y_3_2gf": "RegNetY-3.2GF", "densenet121": "DenseNet-121",
    "googlenet": "GoogLeNet", "inception_v3": "Inception v3", "mobilenet_v3_large": "MobileNetV3-L",
    "mnasnet1_0": "MnasNet", "shufflenet_v2_x1_0": "ShuffleNetV2", "squeezenet1_1": "SqueezeNet",
    "efficientnet_b0": "EfficientNet-B0", "efficientnet_v2_s": "EfficientNetV2-S", "convnext_tiny": "ConvNeXt-T",
    "fcn_resnet50": "FCN-ResNet-50", "deeplabv3_resnet50": "DeepLabV3-ResNet-50", "r3d_18": "R3D-18 (video)",
    "vgg16": "VGG-16", "alexnet": "AlexNet", "swin_t": "Swin-T", "vit_b_16": "ViT-B/16",
}  # fmt: skip
SUITES = {
    "resnet50": "ResNet-50", "grouped": "ResNeXt-50, grouped", "densenet121": "DenseNet-121", "vgg16": "VGG-16",
    "googlenet": "GoogLeNet", "yolov2": "YOLOv2", "alexnet": "AlexNet", "zfnet": "ZFNet",
    "mobilenet_v2": "MobileNetV2, depthwise", "convnext": "ConvNeXt, depthwise",
}  # fmt: skip
#: Relative error of torch's own result in float16, at most, that says something.
_ERROR = 0.2
#: convgen's, at most, times the greater one of torch's.
_TIMES_TORCHS = 1.1

_WIDTH, _LEFT, _ROW, _BAR, _SCALE = 760, 190, 24, 16, 170


def load(name: str) -> dict:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def of_networks(record: dict) -> dict[str, float]:
    """Times torch.compile by network."""
    rows = [r for r in record["rows"] if r["batch"] == BATCH and _is_right(**r["error"])]
    return {r["network"]: r["ms"]["compile"] / r["ms"]["convgen"] for r in rows}


def _is_right(eager: float, compile: float, convgen: float) -> bool:
    return eager < _ERROR and convgen <= _TIMES_TORCHS * max(eager, compile)


def of_layers(record: dict) -> dict[str, float]:
    """Geometric mean over cuDNN by suite."""
    times: dict[str, list[float]] = {}
    for row in record["rows"]:
        if row["speedup"]:
            times.setdefault(row["name"].partition("/")[0], []).append(row["speedup"])
    return {suite: mean for suite, own in times.items() if (mean := geomean(own))}


def _taken(record: dict) -> str:
    """When and of what a record's figures were taken."""
    commits = record["commit"].split(", ")
    of = f"commit {commits[0]}" if len(commits) == 1 else f"{len(commits)} commits, {commits[-1]} the last"
    return f"{record['date'][:10]}, {of}"


def draw() -> str:
    """The picture as SVG."""
    networks, layers = load("networks_h200.json"), load(f"bench_n{BATCH}_h200.json")
    parts = [
        ("Whole networks, times as fast as torch.compile", "a", of_networks(networks), NETWORKS, networks),
        ("Convolution layers, times as fast as cuDNN (geometric mean)", "c", of_layers(layers), SUITES, layers),
    ]
    height = 34 + sum(52 + _ROW * len(names) for *_, names, _ in parts)
    about = f"Speedup by network on one {networks['gpu']}, float16, batch {BATCH}"
    picture = Picture(_WIDTH, height, about, alone=True)
    picture.text(10, 22, f"convgen on one {networks['gpu']}, float16, batch {BATCH}", "ink bold big")
    y = 34
    for title, color, found, names, record in parts:
        picture.text(10, y + 22, title, "ink bold")
        picture.text(_WIDTH - 10, y + 22, _taken(record), "quiet small", "end")
        y += 34
        bottom = y + _ROW * len(names)
        for times in (1, 2, 3):
            picture.line(_LEFT + times * _SCALE, y, _LEFT + times * _SCALE, bottom, "quiet" if times == 1 else "grid")
            picture.text(_LEFT + times * _SCALE, bottom + 12, f"{times}x", "quiet small", "middle")
        for name, shown in names.items():
            picture.text(_LEFT - 10, y + _BAR, shown, "ink", "end")
            picture.rectangle(_LEFT, y + 3, found[name] * _SCALE, _BAR, color)
            picture.text(_LEFT + found[name] * _SCALE + 6, y + _BAR, f"{found[name]:.2f}x", "ink bold")
            y += _ROW
        y = bottom + 18
    return f"{picture}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.parse_args().out.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
