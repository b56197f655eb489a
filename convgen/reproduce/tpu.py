"""Trends of the document's figures 4b and 13 to 16, by the model of a TPU v2's core in `convgen.systolic`.

The document's figures are plots, of which the archived text has no points; what it states in words is held here.
"""

from __future__ import annotations

from collections.abc import Iterable

from convgen.reproduce.networks import NAMES, Layer, layers
from convgen.reproduce.outcome import Outcome, Series
from convgen.systolic.machine import Machine
from convgen.systolic.schedule import Shape
from convgen.systolic.timing import Timing, simulate

_BATCH = 8


def _run(layer: Layer, n: int = _BATCH, machine: Machine | None = None, tiles: int | None = None) -> Timing:
    shape = Shape(n, layer.c, layer.k, layer.p**2, (layer.r, layer.r))
    return simulate(shape, machine or Machine(), tiles)


def _network(name: str, machine: Machine, n: int = _BATCH) -> list[tuple[Timing, int]]:
    return [(_run(layer, n, machine), count) for layer, count in layers(name).items()]


def _utilization(found: Iterable[tuple[Timing, int]]) -> float:
    """A network's utilization of one machine, in percent."""
    found = list(found)
    macs, cycles = sum(t.macs * count for t, count in found), sum(t.cycles * count for t, count in found)
    return 100 * macs / (cycles * found[0][0].machine.array ** 2)


def stride() -> Outcome:
    """Figure 4b."""
    shapes = ((56, 64, 64, 3), (56, 128, 128, 3), (28, 256, 256, 3), (28, 512, 256, 1))
    strides = (1, 2, 4)
    found = [
        [_run(Layer(c, h, k, r, s, r // 2), n=64).tflops for h, c, k, r in shapes] for s in strides
    ]  # fmt: skip
    return Outcome(
        "TFLOPS at strides 1, 2 and 4, batch 64",
        "W, C, K, R",
        [" ".join(map(str, shape)) for shape in shapes],
        [Series(f"stride {s}", values) for s, values in zip(strides, found, strict=True)],
        "TFLOPS",
        ("Loads and products shrink together, so the stride changes little; the document says the same of a TPU.",),
    )


def gemm() -> Outcome:
    """Figure 13a: M x N x K as 1x1 convolutions of M pixels."""
    sizes = (256, 512, 1024, 2048, 4096, 8192)
    found = [simulate(Shape(8, size, size, size // 8, (1, 1)), Machine()) for size in sizes]
    return Outcome(
        "GEMM of M = N = K",
        "M",
        list(map(str, sizes)),
        [Series("cycles", [t.cycles for t in found], 0), Series("utilization", [100 * t.utilization for t in found])],
        "percent of the peak",
        ("The document's simulator is within 4.42% of a TPU v2 on average; there is none here to compare with.",),
        drawn=("utilization",),
    )


def tiles() -> Outcome:
    """Figure 14a: taps that a pass merges."""
    counts = range(1, 10)
    found = [_run(Layer(8, 128, 128, 3, pad=1), tiles=count) for count in counts]
    return Outcome(
        "Multi-tile: N = 8, C = 8, W = K = 128, 3x3",
        "tiles",
        list(map(str, counts)),
        [
            Series("workspace", [t.workspace / 1024 for t in found], 0),
            Series("TFLOPS", [t.tflops for t in found]),
            Series("cycles", [t.cycles for t in found], 0),
        ],
        "TFLOPS",
        (
            "The workspace (KiB) is proportional to the tiles. The second tile saves most cycles; the fourth saves "
            "none, since 9 taps",
            "still take 3 passes. The document finds that a TPU v2 takes 3.",
        ),
        drawn=("TFLOPS",),
    )


def channels() -> Outcome:
    """Figure 14b: min(128 / C, S) tiles."""
    counts = (4, 8, 16, 32, 64, 128)
    rows = [
        [_run(Layer(c, 128, 128, 3, pad=1), tiles=one) for c in counts] for one in (1, None)
    ]  # fmt: skip
    return Outcome(
        "TFLOPS by channels: N = 8, W = K = 128, 3x3",
        "C",
        list(map(str, counts)),
        [
            Series("tiles", [float(t.tiles) for t in rows[1]], 0),
            Series("one tile", [t.tflops for t in rows[0]]),
            Series("min(128 / C, S) tiles", [t.tflops for t in rows[1]]),
        ],
        "TFLOPS",
        ("The document: 5.3% from a TPU v2 on average.",),
        drawn=("one tile", "min(128 / C, S) tiles"),
    )


def networks() -> Outcome:
    """Figure 15a: all convolutions of each network."""
    found = [_network(name, Machine()) for name in NAMES]
    seconds = [sum(t.seconds * count for t, count in rows) for rows in found]
    return Outcome(
        f"Networks' convolutions, batch {_BATCH}",
        "network",
        NAMES,
        [
            Series("ms", [1e3 * s for s in seconds]),
            Series("utilization", [_utilization(rows) for rows in found]),
        ],
        "percent of the peak",
        ("The document: 5.8% from a TPU v2 on average, over all layers.",),
        drawn=("utilization",),
    )


def array() -> Outcome:
    """Figure 16a: the size of the array, for VGG-16."""
    machines = [Machine(array=size) for size in (32, 64, 128, 256, 512)]
    used = [_utilization(_network("vgg16", machine)) for machine in machines]
    return Outcome(
        f"VGG-16 by the size of the array, batch {_BATCH}",
        "array",
        [str(machine.array) for machine in machines],
        [
            Series("utilization", used),
            Series("TFLOPS", [u / 100 * machine.peak / 1e12 for u, machine in zip(used, machines, strict=True)]),
        ],
        "TFLOPS",
        ("The document: utilization falls by half from 128 to 256, which speaks for 128.",),
        drawn=("TFLOPS",),
    )


def word() -> Outcome:
    """Figure 16b: the word of a vector memory, for VGG-16.  Its areas are OpenRAM's, which is not modeled."""
    words = (1, 2, 4, 8, 16, 32)
    found = [_network("vgg16", Machine(word=word), n=32) for word in words]
    idle = []
    for rows in found:
        used = sum(t.words * count for t, count in rows)
        whole = sum(t.cycles * t.machine.array * count for t, count in rows)
        idle.append(100 * (1 - used / whole))
    return Outcome(
        "VGG-16 by the word of the vector memories, batch 32",
        "word",
        list(map(str, words)),
        [Series("ports idle", idle), Series("utilization", [_utilization(rows) for rows in found])],
        "percent of cycles",
        (
            "With words of 1 or 2 elements, ports set the pace. At 8 they are idle for more than half of the time, as "
            "the document says.",
        ),
        drawn=("ports idle",),
    )
