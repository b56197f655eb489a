"""What follows from a problem and a configuration of mma_wgrad: tiles, steps, copies, shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from convgen.kernels.mma_wgrad.config import Config
from convgen.kernels.parts.gradient import GradientLayout

ELEMENT = 2  # bytes of a factor's
CHUNK = 8  # channels of 16 bytes: what ldmatrix reads of a row
ADDRESSES = 58  # a thread's registers besides its fragments


@dataclass(frozen=True)
class Layout(GradientLayout[Config]):
    """A configuration of a problem."""

    @property
    def packs(self) -> int:
        """Matrices that are multiplied: of one group, or of several."""
        return self.problem.groups // self.config.group_pack

    @property
    def rows(self) -> int:
        """gemm_m: y's channels, of a pack."""
        return self.problem.k_per_group * self.config.group_pack

    @property
    def channels(self) -> int:
        """x's channels, of a pack."""
        return self.problem.c_per_group * self.config.group_pack

    @property
    def tap_chunks(self) -> int:
        """Chunks of channels of a tap: gemm_n is counted in them."""
        return -(-self.channels // CHUNK)

    @cached_property
    def chunks(self) -> int:
        return self.problem.taps * self.tap_chunks

    @property
    def m_tiles(self) -> int:
        return -(-self.rows // self.config.tile_m)

    @property
    def n_tiles(self) -> int:
        return -(-self.chunks * CHUNK // self.config.tile_n)

    @cached_property
    def tiles(self) -> int:
        return self.packs * self.m_tiles * self.n_tiles

    @cached_property
    def steps(self) -> int:
        """k blocks of all pixels."""
        return -(-self.problem.output_pixels // self.config.tile_k)

    def vector(self, role: str) -> int:
        """Channels of x or y that a copy takes: neighbors that are aligned wherever a pack's channels begin."""
        tensor = self.problem.tensor(role)
        total, own, dim = (self.problem.c, self.channels, "c") if role == "x" else (self.problem.k, self.rows, "k")
        if tensor.stride(dim) != 1:
            return 1
        return math.gcd(CHUNK, total, tensor.pitch or 0, own if self.packs > 1 else 0)

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return self.config.tile_k * (self.config.tile_m + self.config.tile_n) * ELEMENT

    @property
    def shared_bytes(self) -> int:
        return self.config.stages * self.stage

    @cached_property
    def held(self) -> int:
        """Blocks that a multiprocessor holds at once."""
        rows, columns = self.fragments
        registers = 4 * rows * columns + 4 * rows + 2 * columns + ADDRESSES
        return max(self.target.resident_blocks(self.config.threads, min(registers, 255), self.shared_bytes), 1)

    @property
    def fragments(self) -> tuple[int, int]:
        """A warp's fragments along m, of 16 rows, and along n, of 8 columns."""
        c = self.config
        return c.tile_m // c.warps_m // 16, c.tile_n // c.warps_n // 8
