"""The LeNet of H. Zhang, "A Simple and Efficient Implementation of im2col in Convolution Neural Networks" (2017), table
2: its convolutions and their gradients by convgen, the rest by NumPy or CuPy, whichever the arrays are of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from convgen import functional as F

Array = Any
#: Layer -> its weights: filters (k, c, r, s), or (inputs, outputs).
SHAPES: Mapping[str, tuple[int, ...]] = {
    "conv1": (20, 1, 5, 5),
    "conv2": (50, 20, 5, 5),
    "fc3": (50 * 4 * 4, 500),
    "fc4": (500, 10),
}
KEPT = 0.5  # of fc3's outputs, by dropout


class LeNet:
    """Weights, biases and momenta in float32, on the device of the module `xp` (numpy or cupy).

    `strategy` is convgen's for the convolutions, such as im2col; None lets it choose."""

    def __init__(self, xp: Any = np, strategy: str | None = None, seed: int = 0, shapes: Mapping = SHAPES) -> None:
        random = np.random.default_rng(seed)
        self.xp, self.strategy, self.random = xp, strategy, random
        self.weights: dict[str, Array] = {}
        for name, shape in shapes.items():
            inputs = np.prod(shape[1:]) if len(shape) == 4 else shape[0]
            weight = random.normal(0, np.sqrt(2 / inputs), shape)
            self.weights[name] = xp.asarray(weight, xp.float32)
            self.weights[f"{name}.bias"] = xp.zeros(shape[0] if len(shape) == 4 else shape[1], xp.float32)
        self.momenta = {name: xp.zeros_like(weight) for name, weight in self.weights.items()}

    def scores(self, x: Array) -> Array:
        """(n, 10) of images (n, 1, 28, 28)."""
        return self._forward(x, lambda a: a)[0]

    def step(self, x: Array, labels: Array, rate: float = 0.01, momentum: float = 0.9) -> float:
        """One step of stochastic gradient descent; returns the loss before it."""
        loss, gradients = self.gradients(x, labels)
        for name, gradient in gradients.items():
            self.momenta[name] = momentum * self.momenta[name] - rate * gradient
            self.weights[name] = self.weights[name] + self.momenta[name]
        return loss

    def gradients(self, x: Array, labels: Array) -> tuple[float, dict[str, Array]]:
        """The loss (mean cross entropy), and its gradient for every weight and bias."""
        kept = self.xp.asarray(self.random.random((len(x), self.weights["fc4"].shape[0])) < KEPT, self.xp.float32)
        scores, seen = self._forward(x, lambda a: a * kept / KEPT)
        loss, g = self._cross_entropy(scores, labels)
        found: dict[str, Array] = {}
        g = self._product_gradients("fc4", seen["fc4"], g, found)
        g = g * (kept / KEPT) * (seen["fc4"] > 0)
        g = self._product_gradients("fc3", seen["fc3"], g, found).reshape(seen["pool2"].shape)
        g = _unpooled(g, seen["pool2"], seen["relu2"])
        self._filter_gradients("conv2", seen["pool1"], g, found)
        g = F.conv2d_input(seen["pool1"].shape, self.weights["conv2"], g, strategy=self.strategy)
        g = _unpooled(g, seen["pool1"], seen["relu1"])
        self._filter_gradients("conv1", x, g, found)
        return loss, found

    def _forward(self, x: Array, drop: Callable[[Array], Array]) -> tuple[Array, dict[str, Array]]:
        """Scores, and what the layers in between have made."""
        w, seen = self.weights, {}
        for i in (1, 2):
            weight, bias = w[f"conv{i}"], w[f"conv{i}.bias"]
            seen[f"relu{i}"] = F.conv2d(x, weight, bias, activation="relu", strategy=self.strategy)
            x = seen[f"pool{i}"] = _pooled(seen[f"relu{i}"])
        seen["fc3"] = x.reshape(len(x), -1)
        seen["fc4"] = drop(self.xp.maximum(seen["fc3"] @ w["fc3"] + w["fc3.bias"], 0))
        return seen["fc4"] @ w["fc4"] + w["fc4.bias"], seen

    def _cross_entropy(self, scores: Array, labels: Array) -> tuple[float, Array]:
        """The mean loss, and its gradient for the scores."""
        exp = self.xp.exp(scores - scores.max(1, keepdims=True))
        shares = exp / exp.sum(1, keepdims=True)
        rows = self.xp.arange(len(labels))
        loss = -float(self.xp.log(shares[rows, labels]).mean())
        shares[rows, labels] -= 1
        return loss, shares / len(labels)

    def _product_gradients(self, name: str, x: Array, g: Array, found: dict[str, Array]) -> Array:
        found[name], found[f"{name}.bias"] = x.T @ g, g.sum(0)
        return g @ self.weights[name].T

    def _filter_gradients(self, name: str, x: Array, g: Array, found: dict[str, Array]) -> None:
        found[name] = F.conv2d_weight(x, self.weights[name].shape, g, strategy=self.strategy)
        found[f"{name}.bias"] = g.sum((0, 2, 3))


def _windows(x: Array) -> Array:
    """(n, c, h / 2, 2, w / 2, 2): the windows of a 2x2 pooling."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2)


def _pooled(x: Array) -> Array:
    """The largest of each 2x2 pixels."""
    return _windows(x).max((3, 5))


def _unpooled(g: Array, pooled: Array, x: Array) -> Array:
    """The gradient of relu and pooling for what went into them: to the largest pixels, in equal parts, if positive."""
    largest = (_windows(x) == pooled[:, :, :, None, :, None]) & (_windows(x) > 0)
    share = g / largest.sum((3, 5)).clip(1)
    return (largest * share[:, :, :, None, :, None]).reshape(x.shape).astype(g.dtype)
