"""Bytes that explicit im2col takes: the inputs of a network's convolutions, and their lowered matrices."""

from __future__ import annotations

from convgen.reproduce.networks import NAMES, layers
from convgen.reproduce.outcome import Outcome, Series

_F32, _MIB = 4, 1 << 20

#: The document's table I, "MB": network -> (inputs, lowered inputs).
_PRINTED = {
    "alexnet": (1.39, 14.57),
    "resnet50": (34.55, 81.11),
    "vgg16": (34.65, 311.80),
    "yolov2": (530.56, 869.50),
    "densenet121": (1196.48, 5641.70),
}


def memory() -> Outcome:
    """f32, one image, every convolution of the network, those of 1x1 as well; ResNet-50 without projections."""
    inputs, lowered = [], []
    for network in NAMES:
        found = layers(network, projections=False)
        inputs.append(_F32 / _MIB * sum(count * layer.input_elements for layer, count in found.items()))
        lowered.append(_F32 / _MIB * sum(count * layer.lowered_elements for layer, count in found.items()))
    printed = [_PRINTED.get(network, (None, None)) for network in NAMES]
    return Outcome(
        "Memory of explicit im2col, f32, one image",
        "network",
        NAMES,
        (
            Series("inputs", inputs),
            Series("document's inputs", [p[0] for p in printed], printed=True),
            Series("lowered", lowered),
            Series("document's lowered", [p[1] for p in printed], printed=True),
            Series("lowered / inputs", [b / a for a, b in zip(inputs, lowered, strict=True)]),
        ),
        "MiB",
        (
            "The document's MB are MiB: VGG-16 and ResNet-50 (stride in the 3x3 layers, no projections) agree to 0.01.",
            "AlexNet differs by 8%: the document does not say which of its variants it takes; ours has one tower.",
            "YOLO and DenseNet differ by more than any variant at batch 1 explains; the document names no batch, image "
            "size or depth for them.",
        ),
        drawn=("inputs", "document's inputs", "lowered", "document's lowered"),
        logarithmic=True,
    )
