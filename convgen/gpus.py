"""GPUs: one row per part, with the rates that a roofline is drawn from and the source of each figure.

Rates are dense (without sparsity), of tensor cores that add in float32 where there are such, except `f32`, which is of
the ordinary cores.  A product of tf32 takes twice as long as one of 16 bits (the data sheets).  The ordinary cores take
`f64_times` as long for f64 (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions").  A measured
figure is what the part sustained in a large product or a large copy; the others are the data sheets' peaks, of which 80
to 90% is seen in practice.
"""

from __future__ import annotations

from dataclasses import dataclass

from convgen import habits, plurals

#: A product of tf32 over one of 16 bits.
_TF32_TIMES = 2


@dataclass(frozen=True)
class Rate:
    """Units (operations, bytes) a second, and where the figure comes from."""

    per_second: float
    source: str


@dataclass(frozen=True)
class Gpu:
    """A part: multiprocessors, bytes a second of device memory (read plus write), and operations a second
    by the width of what is multiplied."""

    name: str
    sms: int
    memory: Rate
    bits16: Rate
    bits8: Rate
    f32: Rate
    f64_times: int

    def __str__(self) -> str:
        """Its name without the maker's."""
        return self.name.removeprefix("NVIDIA ")

    @property
    def products_a_sm(self) -> float:
        """Operations a second of a multiprocessor's tensor cores, with factors of 16 bits."""
        return self.bits16.per_second / self.sms

    def multiply(self, dtype: str, math: object = None) -> Rate:
        """The rate at which factors of an element type are multiplied and added; f32 by whichever cores are faster, as
        one product of tf32 where a plan's `math` is that, else as three, which keep f32's precision."""
        if dtype == "f64":
            return Rate(self.f32.per_second / self.f64_times, self.f32.source)
        if dtype == "f32":
            products = 1 if math == "tf32" else 3
            by_tf32 = self.bits16.per_second / _TF32_TIMES / products
            source = f"{plurals.counted(products, 'tf32 product')} each, at half of the 16-bit rate"
            return self.f32 if self.f32.per_second >= by_tf32 else Rate(by_tf32, source)
        return self.bits16 if dtype in ("f16", "bf16") else self.bits8


def _sheet(value: float) -> Rate:
    return Rate(value, "data sheet")


_ROWS = (
    Gpu("NVIDIA A100-SXM4-80GB", 108, _sheet(2.039e12), _sheet(312e12), _sheet(624e12), _sheet(19.5e12), 2),
    Gpu("NVIDIA RTX A6000", 84, _sheet(768e9), _sheet(154.8e12), _sheet(309.7e12), _sheet(38.7e12), 64),
    Gpu("NVIDIA L40S", 142, _sheet(864e9), _sheet(362e12), _sheet(733e12), _sheet(91.6e12), 64),
    Gpu(
        "NVIDIA GeForce RTX 4090", 128,
        _sheet(1.008e12), _sheet(165.2e12), _sheet(330.3e12), _sheet(82.6e12), 64,
    ),
    Gpu(
        "NVIDIA H100 80GB HBM3", 132,
        Rate(3.02e12, "measured, device copy of 1 GB"),
        Rate(757e12, "measured, 8192 x 8192 x 8192 by cuBLAS"),
        Rate(2 * 757e12, "twice the measured 16-bit rate, the data sheet's ratio"),
        _sheet(67e12), 2,
    ),
    Gpu(
        "NVIDIA H200", 132,
        Rate(4.3e12, "measured, device copy of 1 GB"),
        Rate(790e12, "measured, 8192 x 8192 x 8192 by cuBLAS"),
        Rate(2 * 790e12, "twice the measured 16-bit rate, the data sheet's ratio"),
        _sheet(67e12), 2,
    ),
    Gpu("NVIDIA B200", 148, _sheet(8e12), _sheet(2250e12), _sheet(4500e12), _sheet(80e12), 2),
    Gpu(
        "NVIDIA GeForce RTX 5090", 170,
        _sheet(1.792e12), _sheet(209.5e12), _sheet(419e12), _sheet(104.8e12), 64,
    ),
)  # fmt: skip
GPUS: dict[str, Gpu] = {row.name: row for row in _ROWS}
#: The part that the cost models' rates are fitted on.
FITTED = GPUS["NVIDIA H200"]


def named(words: str) -> list[Gpu]:
    """The parts whose names have these words, in any case."""
    return [gpu for gpu in GPUS.values() if habits.plain(words) in habits.plain(gpu.name)]
