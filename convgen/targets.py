"""GPU targets: one row per architecture.

Limits of a block and of a multiprocessor: CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability".  `features` name the instruction families that a strategy may ask for.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from convgen import habits
from convgen.gpus import GPUS, Gpu

#: Bytes of a multiprocessor's shared memory that every block takes besides its own.
RESERVED_SHARED = 1024


@dataclass(frozen=True)
class Target:
    """An architecture, as far as kernels depend on it.  Sizes in bytes."""

    name: str  # as NVRTC's -arch takes it
    capability: tuple[int, int]
    exact: bool  # code runs on this capability alone (the "a" targets)
    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    registers_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    gpu: Gpu = field(hash=False)  # the part that stands for it; the launcher asks the device
    features: frozenset[str]
    clusters: tuple[int, ...] = ()  # of 1, 2, 3, ... blocks, each with a multiprocessor to itself, that run at once

    def __str__(self) -> str:
        return self.name

    @property
    def sms(self) -> int:
        """Multiprocessors of the part that stands for it."""
        return self.gpu.sms

    def shared_limit(self, blocks: int = 1) -> int:
        """Bytes of shared memory that each of so many blocks on a multiprocessor may have."""
        return min(self.shared_bytes_per_block, self.shared_bytes_per_sm // blocks - RESERVED_SHARED)

    def register_blocks(self, registers: int, threads: int) -> int:
        """Blocks of so many threads that a multiprocessor has registers for; a thread gets them by eights, and some."""
        return self.registers_per_sm // (threads * max(1, -(-registers // 8)) * 8)

    def resident_blocks(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Blocks that a multiprocessor holds at once, of so many threads, registers each and bytes of shared memory."""
        by_shared = self.shared_bytes_per_sm // (shared_bytes + RESERVED_SHARED)
        by_registers = self.register_blocks(registers, threads)
        return min(by_shared, by_registers, self.threads_per_sm // threads, self.blocks_per_sm)

    def clustered_sms(self, cluster: int) -> int:
        """Multiprocessors that clusters of so many blocks can fill.  Larger ones than there may be, which are refused
        later, count as the largest."""
        return cluster * self.clusters[min(cluster, len(self.clusters)) - 1] if self.clusters else self.sms

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether code for this target runs on a GPU of that compute capability."""
        if self.exact:
            return capability == self.capability
        return capability[0] == self.capability[0] and capability >= self.capability


_AMPERE = frozenset({"cp_async", "mma", "ldmatrix", "bf16"})
_ADA = _AMPERE | {"fp8_convert"}
_HOPPER = _ADA | {"mbarrier", "tma", "cluster", "stmatrix", "dependent_launch"}
_WGMMA = _HOPPER | {"wgmma", "setmaxnreg"}
#: The least that H200s had room for, less one of three and of eight; parts differ (docs/hardware/clusters.md).
_CLUSTERS = (132, 66, 38, 30, 22, 17, 15, 14)
_A100, _A6000, _L40S = (GPUS[f"NVIDIA {name}"] for name in ("A100-SXM4-80GB", "RTX A6000", "L40S"))
_H200, _B200, _RTX_5090 = (GPUS[f"NVIDIA {name}"] for name in ("H200", "B200", "GeForce RTX 5090"))
_ROWS = (
    Target("sm_80", (8, 0), False, 166912, 167936, 65536, 2048, 32, _A100, _AMPERE),
    Target("sm_86", (8, 6), False, 101376, 102400, 65536, 1536, 16, _A6000, _AMPERE),
    Target("sm_89", (8, 9), False, 101376, 102400, 65536, 1536, 24, _L40S, _ADA),
    Target("sm_90", (9, 0), False, 232448, 233472, 65536, 2048, 32, _H200, _HOPPER, _CLUSTERS),
    Target("sm_90a", (9, 0), True, 232448, 233472, 65536, 2048, 32, _H200, _WGMMA, _CLUSTERS),
    Target("sm_100a", (10, 0), True, 232448, 233472, 65536, 2048, 32, _B200, _HOPPER | {"tcgen05", "setmaxnreg"}),
    Target("sm_120", (12, 0), False, 101376, 102400, 65536, 1536, 24, _RTX_5090, _HOPPER),
)
TARGETS: dict[str, Target] = {row.name: row for row in _ROWS}
DEFAULT_TARGET = "sm_90a"


def target_for(capability: tuple[int, int]) -> Target | None:
    """The best target for a GPU: an exact one where there is one, else the newest that runs there."""
    fits = [t for t in TARGETS.values() if t.runs_on(capability)]
    return max(fits, key=lambda t: (t.capability, t.exact), default=None)


def other_target(name: str, known: Collection[str]) -> str | None:
    """A hint for a target that is none of the known ones: what a GPU, or another architecture, has instead."""
    oldest = next(iter(TARGETS.values()))
    word = habits.plain(name)
    number = re.fullmatch(r"(?:sm|compute|cc)?(\d{1,2})(\d)[af]?", word)
    capability = (int(number[1]), int(number[2])) if number else None
    if word in habits.OLD_TARGETS or (capability and capability < oldest.capability):
        return f"the oldest target is {oldest}"
    if capability and (found := target_for(capability)) and found.name in known and found.name != name:
        return f"did you mean `{found}`?"
    return habits.did_you_mean(name, known, habits.TARGETS)
