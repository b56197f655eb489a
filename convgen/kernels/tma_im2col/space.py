"""Configurations of tma_im2col that are worth considering."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import partial

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Part
from convgen.kernels.config import Options, considered
from convgen.kernels.parts import clusters, prepare
from convgen.kernels.parts.assignment import assignment
from convgen.kernels.parts.cost import LINE
from convgen.kernels.parts.hopper import spans
from convgen.kernels.tma_im2col import cost
from convgen.kernels.tma_im2col.config import LEAST_SPLIT, Config
from convgen.kernels.tma_im2col.demands import between_taps, least
from convgen.kernels.tma_im2col.epi_tiles import WIDEST_EPI_TILE, epi_tile_columns
from convgen.kernels.tma_im2col.gemm import Gemm, gemm
from convgen.kernels.tma_im2col.layout import Layout
from convgen.targets import Target

#: wgmma's rows of a tile, and how many consumers share them in which way, that are worth considering.
SHAPES = (
    (128, 2, "cooperative"),
    (64, 1, "cooperative"),
    (192, 3, "cooperative"),
    (256, 2, "cooperative"),
    (64, 2, "pingpong"),
    (64, 3, "pingpong"),
    (128, 2, "pingpong"),
)
MAX_STAGES = 12
#: Of a cluster that keeps B, so that its blocks stay together.
FEW_STAGES = 4
#: k blocks of a stage that are worth considering, and channels of all of them, at most.
K_BLOCKS, WIDEST_STAGE = (1, 2, 3, 5, 7, 9), 160
#: Clusters whose blocks keep a part of B each and load A together: where rows of y are no whole lines, blocks with
#: neighboring channels then fill a line while L2 has it.  How many blocks; (pixels, consumers, schedule); what output
#: channels are a multiple of; and the k blocks beyond which waiting for one another costs more (61 layers, H200).
WHOLE_B, WHOLE_B_SHAPES, WHOLE_B_CHANNELS = (2, 4, 8), ((64, 2, "pingpong"), (64, 3, "pingpong")), (16, 64)
WHOLE_B_STEPS = 2
#: Output channels of a tile, a multiple of which fills lines.
WHOLE_LINES = 64
#: Bytes that a multiprocessor has in flight when it waits for device memory.
IN_FLIGHT = 64 << 10
#: Multiprocessors for each part of the output channels, at least, where B stays.
LEAST_SHARING = 8
#: Bytes of B that stay in shared memory, at most, for stages and epilogue tiles to find room beside them.
MOST_RESIDENT = 128 << 10
#: (blocks, operand) of the clusters that are considered, for the best so many configurations without one.  Four
#: blocks leave multiprocessors idle: an H200 places them within groups of 16 and 18.
CLUSTERS = ((2, "a"), (2, "b"))
CLUSTERED = 24
#: What follows from tile_k, and from the columns that a block stores, unless it stores whole pixels where these fit.
OF_K = ("channel_blocks", "phase_k_blocks", "span")
OF_COLUMNS = ("epi_tile_shape", "epi_tile_bytes", "arriving", "leaving", "slot")
#: The best so many are considered with their k loops shared evenly, too.
STREAMED = 8

#: k blocks of a stage, and blocks of a multiprocessor.
Choice = tuple[int, int]


def parts(problem: ConvProblem, target: Target, fixed: Options) -> Iterator[Part[Layout]]:
    """Every tile; without a cluster that shares operands unless the options ask for one, or it keeps all of B."""
    read = assignment(problem).problem
    for pack in packs(read, fixed):
        g = gemm(problem, pack)
        of_tile = OF_K if g.tap_rows else (*OF_K, "tap_rows")  # without rows to leave out, no tile leaves any
        alike: dict[object, Layout] = {}
        for config, choices in _tiles(g, target, fixed, pack):
            kind = config.tile_k, config.swap_ab, config.columns // config.split_k
            if kind not in alike:
                wide = not config.swap_ab and epi_tile_columns(g, kind[-1]) > WIDEST_EPI_TILE
                of_kind = of_tile if wide or g.columns % 16 else (*of_tile, *OF_COLUMNS)
                alike[kind] = Layout(problem, target, config, g).knowing(*of_kind)
            us = 0.0
            if not {"cluster", "stream_k"} & fixed.keys() and config.cluster == 1:
                k_blocks, blocks = (set(each) for each in zip(*choices, strict=True))
                us = least(alike[kind].having(config), max(k_blocks), blocks)
            yield Part(us, _layouts(alike[kind], config, choices, fixed))


def _layouts(alike: Layout, plainest: Config, choices: Iterable[Choice], fixed: Options) -> Iterator[Layout]:
    """Layouts for a tile, one for each of these choices."""
    cluster = int(fixed.get("cluster", plainest.cluster))
    several = cluster > plainest.cluster  # which the options ask for
    operands = considered(fixed, "multicast", ["a", "b"][: 1 + several])
    for k_blocks, blocks in choices:
        config = plainest.but(k_blocks=k_blocks, blocks=blocks)
        for operand in operands:
            yield from _staged(alike.having(config), fixed, cluster, operand, config.stream_k)


def packs(forward: ConvProblem, fixed: Options) -> list[int]:
    """Groups to a pack: such that packs fill products; where these are wide, or there are none, that end inside one."""
    if "group_pack" in fixed:
        return [int(fixed["group_pack"])]
    whole = prepare.group_packs(forward)
    if whole and whole[0] * forward.c_per_group <= prepare.WIDEST_PACK:
        return list(whole)
    return list(dict.fromkeys((*whole, *prepare.group_packs(forward, prepare.VECTOR, fewer=True))))


def refine(best: Iterator[Layout], fixed: Options) -> Iterator[Layout]:
    """The best configurations in clusters that load an operand together, with their k loops shared evenly, and, where
    L2 loses x from tap to tap, with taps inner."""
    alone, split = _promising(best)
    for layout in (*_together(alone, split, fixed), *alone, *split):
        yield layout
        if "order" not in fixed and layout.gemm.read_again and between_taps(layout) > cost.H200.l2_kept:
            yield _with(layout, order="taps_inner")


def _with(layout: Layout, **changes: int | str) -> Layout:
    """A copy with other values of these fields, discarding everything found so far."""
    return Layout(layout.problem, layout.target, layout.config.but(**changes), layout.gemm)


def _together(alone: list[Layout], split: list[Layout], fixed: Options) -> Iterator[Layout]:
    """Layouts in clusters, and with their k loops shared evenly."""
    if "cluster" in fixed:
        return
    for layout in (*alone, *split):
        for blocks, operand in CLUSTERS:
            fits = blocks * layout.config.split_k <= clusters.MAX_CLUSTER and _neighbors(layout, operand) >= blocks
            if fits and fixed.get("multicast", operand) == operand:
                yield from _staged(layout, fixed, blocks, operand, layout.config.stream_k)
    if "stream_k" not in fixed and not any(x.gemm.phases for x in alone):
        whole = [x for x in alone if x.config.schedule == "cooperative" and x.config.blocks == 1]
        for layout in whole[:STREAMED]:
            yield from _staged(layout, fixed, 1, layout.config.multicast, stream_k=1)


def _promising(best: Iterator[Layout]) -> tuple[list[Layout], list[Layout]]:
    """The best configurations whose tiles are each of one block, and those before the last of them that split k."""
    alone: list[Layout] = []
    split: list[Layout] = []
    for layout in best:
        kind = split if layout.config.split_k > 1 else alone
        if not layout.config.resident and len(kind) < CLUSTERED:
            kind.append(layout)
        if len(alone) == CLUSTERED:
            break
    return alone, split


def _neighbors(layout: Layout, operand: str) -> int:
    """Tiles that read the same part of an operand: all that differ in the other's dim alone."""
    config, g = layout.config, layout.gemm
    return -(-g.group_columns // config.tile_n) if operand == "a" else -(-g.pixels // config.tile_m)


def _staged(layout: Layout, fixed: Options, cluster: int, multicast: str, stream_k: int) -> Iterator[Layout]:
    """Layouts in a cluster, with as many stages as fit, but no more than a tile can use; if these leave no room for the
    sums of a split, also with as many as fit beside the sums."""
    c = layout.config

    # most searches take it unchanged: no copy
    found = layout
    if (c.stages, c.cluster, c.multicast, c.stream_k) != (2, cluster, multicast, stream_k):
        found = _with(layout, stages=2, cluster=cluster, multicast=multicast, stream_k=stream_k)

    def of(stages: int) -> Layout:
        if layout.gemm.columns % 16:  # whether whole pixels leave hangs on the room for them
            return _with(found, stages=stages)
        return found.sibling(stages=stages)

    if "stages" in fixed:
        yield of(int(fixed["stages"]))
        return
    limit = layout.target.shared_limit(c.blocks)
    # where B stays, a stage is small, and a block has many tiles
    useful = max(-(-found.k_blocks // (c.k_blocks * c.split_k)), 4, c.resident * -(-IN_FLIGHT // found.stage))
    stages = min((limit - found.fixed_bytes) // (found.stage + 16), MAX_STAGES, useful)
    # another number of stages may need room to align the epilogue tiles, or leave none for whole pixels
    while stages > 2:
        made = of(stages)
        if made.shared_bytes <= limit and made.epi_tile_shape == found.epi_tile_shape:
            yield made
            if c.resident and cluster > 1 and stages > FEW_STAGES:
                yield of(FEW_STAGES)
            if not made.sums_in_place:
                return
            stages = min(stages, (limit - found.fixed_bytes - found.split_sums) // (found.stage + 16) + 1)
        stages -= 1
    yield of(2)


def _tiles(g: Gemm, target: Target, fixed: Options, pack: int) -> Iterator[tuple[Config, Iterable[Choice]]]:
    """Tiles with their other options, the plainest first; stages are still open; without a cluster that shares
    operands, unless it keeps all of B."""

    values = partial(considered, fixed)
    c = g.channels
    order = str(fixed.get("order", "channels_inner"))
    raster, stream_k = int(fixed.get("raster", 1)), int(fixed.get("stream_k", 0))
    shapes = list(_tile_shapes(g, fixed))
    if g.group:  # a tile is of one
        shapes = [shape for shape in shapes if g.group_columns % shape[1] == 0] or shapes
    for k in values("tile.k", spans(c)):
        k_blocks = math.gcd(*g.taps) * -(-c // k)
        shared = values("k_blocks", [d for d in K_BLOCKS if k_blocks % d == 0 and k * d <= WIDEST_STAGE])
        for m, n, consumers, schedule, swap_ab in shapes:
            tiles = len(g.taps) * g.m_tiles(m) * -(-g.columns // n)
            rows, columns = (n, m) if swap_ab else (m, n)
            few = schedule == "cooperative" and tiles < target.sms and not g.phases
            splits = [s for s in clusters.SIZES if columns % (LEAST_SPLIT[swap_ab] * s) == 0] if few else [1]
            many = rows == 64 and consumers == 1 and tiles > target.sms
            # several tiles a block, which has some of few parts of the output channels
            stays = tiles > target.sms >= LEAST_SHARING * -(-g.columns // n) and not g.phases and raster == 1
            stays = stays and k_blocks * n * k * g.element_bytes <= MOST_RESIDENT
            choices = list(itertools.product(shared, values("blocks", (1, 2, 3) if many else (1,))))
            for split_k, resident in itertools.product(
                values("split_k", splits), values("resident", (0, 1) if stays else (0,))
            ):
                plainest = Config(
                    m, n, k, 2, consumers, schedule, order, choices[0][1], choices[0][0], split_k, swap_ab, 1, "a",
                    raster, stream_k, pack, resident,
                )  # fmt: skip
                yield plainest, choices
        for config in _whole_b(g, target, fixed, k, k_blocks, order):
            yield config, ((1, 1),)


def _whole_b(g: Gemm, target: Target, fixed: Options, k: int, k_blocks: int, order: str) -> Iterator[Config]:
    """Clusters that keep all of B, where rows of y are no whole lines and a block has several tiles."""
    whole_lines = int(g.traffic["y_pitch"]) % LINE == 0
    if whole_lines or k_blocks > WHOLE_B_STEPS or g.phases or g.plane or g.group:
        return
    if fixed.keys() - {"tile.k", "order", "stages", "group_pack"}:
        return
    for cluster in WHOLE_B:
        part = -(-g.columns // cluster)
        widths = sorted({-(-part // channels) * channels for channels in WHOLE_B_CHANNELS})
        for n, (m, consumers, schedule) in itertools.product(widths, WHOLE_B_SHAPES):
            several = g.m_tiles(m) * cluster > target.clustered_sms(cluster)
            if 32 <= n <= 256 and several and k_blocks * n * k * g.element_bytes <= MOST_RESIDENT:
                yield Config(m, n, k, 2, consumers, schedule, order, 1, 1, 1, 0, cluster, "a", 1, 0, g.group_pack, 1)


def _tile_shapes(g: Gemm, fixed: Options) -> Iterator[tuple[int, int, int, str, int]]:
    """(m, n, consumers, schedule, swap_ab) that agree with the options; if no row of SHAPES does, what the options ask
    for."""
    for swap_ab in (0, 1):
        if fixed.get("swap_ab", swap_ab) != swap_ab:
            continue
        of_rows, of_columns = ("tile.n", "tile.m") if swap_ab else ("tile.m", "tile.n")
        if of_columns in fixed:
            columns = [int(fixed[of_columns])]
        elif swap_ab:
            columns = [m for m in range(16, 257, 16) if m < g.pixels + 16]
        else:
            columns = _widths(g)
        fitting = [
            (r, consumers, schedule)
            for r, consumers, schedule in SHAPES
            if fixed.get(of_rows, r) == r
            and fixed.get("consumers", consumers) == consumers
            and fixed.get("schedule", schedule) == schedule
            and (of_rows in fixed or not swap_ab or r <= -(-g.group_columns // 64) * 64)
        ]
        if not fitting and (of_rows in fixed or "swap_ab" in fixed or not swap_ab):
            fitting = [(int(fixed.get(of_rows, 128)), int(fixed.get("consumers", 2)),
                        str(fixed.get("schedule", "cooperative")))]  # fmt: skip
        for (r, consumers, schedule), c in itertools.product(fitting, columns):
            m, n = (c, r) if swap_ab else (r, c)
            yield m, n, consumers, schedule, swap_ab


def _widths(g: Gemm) -> list[int]:
    """Output channels a tile: the least for each number of tiles, where epilogue tiles are worth a store; and where
    these are narrow, the least that are stored by whole lines."""
    k = g.group_columns
    widths = [n for n in range(8, 257, 8) if n < 32 or epi_tile_columns(g, n) >= 16]
    of_count: dict[int, list[int]] = {}
    for n in widths:
        of_count.setdefault(-(-k // n), []).append(n)
    found = {alike[0] for alike in of_count.values()}
    for alike in of_count.values():
        if k > alike[0] >= 32 > epi_tile_columns(g, alike[0]):
            found |= {*[n for n in alike if n % WHOLE_LINES == 0][:1]}
    return sorted(found)
