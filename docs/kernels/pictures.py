"""Draws the pictures of docs/kernels: the tile, warps, shared memory and data flow of a plan, read from its layout.

    python docs/kernels/pictures.py tma_im2col

Each kernel is drawn for one of the specs of specs/golden, so what a picture says can be looked up in generated/.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from convgen import driver
from convgen.ir.plan import Plan
from convgen.picture import COLORS, Picture

SPECS = Path(__file__).parents[2] / "specs" / "golden"
_WIDTH, _LEFT, _SIDE, _LEAST = 780, 20, 150, 5


@dataclass(frozen=True)
class Area:
    """A plane of `rows` by `columns`, with a tile of it, and a part of the tile that a thread or warp computes."""

    rows: int
    columns: int
    names: tuple[str, str]
    tile: tuple[int, int]
    part: tuple[int, int] | None = None
    part_name: str = ""
    depth: tuple[str, int, int] | None = None  # of a matrix product: gemm_k's name, extent, and a k block's
    by: str = "a block"  # what computes the tile


@dataclass(frozen=True)
class Drawing:
    """What is drawn: an area, warps by what they do, parts of a memory in bytes, and the way of the data."""

    area: Area
    warps: tuple[tuple[str, int], ...]
    memory: tuple[tuple[str, int], ...]
    flow: tuple[tuple[str, str], ...]
    memory_name: str = "shared memory of a block"


def product(plan: Plan, n: int, k: int, tile_k: int) -> Area:
    """The matrix product of a layer, with the tile that the configuration names."""
    c: Any = plan.config
    return Area(
        plan.problem.output_pixels, n, ("gemm_m: pixels", "gemm_n: channels"), (c.tile_m, c.tile_n),
        depth=("gemm_k", k, tile_k),
    )  # fmt: skip


def pixels(plan: Plan, tile: tuple[int, int], part: tuple[int, int] | None = None, name: str = "") -> Area:
    """An image of y."""
    rows, columns = (1, *plan.problem.output)[-2:]
    return Area(rows, columns, ("p", "q"), (min(tile[0], rows), min(tile[1], columns)), part, name)


def warps(plan: Plan, multiplying: int | None = None, rest: str = "producer") -> tuple[tuple[str, int], ...]:
    total = plan.launch().block // 32
    own = total if multiplying is None else multiplying
    found = (("multiply and store", own), (rest, total - own))
    return tuple((name, count) for name, count in found if count)


def tma_im2col(plan: Plan) -> Drawing:
    c, layout = plan.config, plan.layout
    taps = plan.problem.taps
    memory = sizes_of(layout.shared_table)
    return Drawing(
        product(plan, plan.problem.k, taps * layout.gemm.channels, c.tile_k * c.k_blocks),
        warps(plan, 4 * c.consumers), memory,
        (
            ("x, w", "in global memory"), ("TMA", f"im2col boxes of {c.tile_m} pixels, one tap at a time"),
            ("ring", f"{c.stages} stages of A and B, with full and empty barriers"), ("wgmma", "sums in registers"),
            ("epilogue", "operands arrive like C"), ("epilogue tile", "stmatrix, then a TMA store"), ("y", ""),
        ),
    )  # fmt: skip


def tma_plain(plan: Plan) -> Drawing:
    layout, problem = plan.layout, plan.problem
    area = Area(
        problem.output_pixels, problem.k, ("gemm_m: pixels", "gemm_n: channels"), (64, plan.config.tile_n),
        depth=("gemm_k", problem.taps * problem.c, 64),
    )  # fmt: skip
    return Drawing(
        area, warps(plan), sizes_of(layout.shared_table[:2]),
        (
            ("x, w", "in global memory"), ("TMA", "an im2col box of 64 pixels, and a tap's filters"),
            ("tiles", "one of each: nothing overlaps"), ("wgmma", "sums in registers"), ("y", "stored by each thread"),
        ),
    )  # fmt: skip


def tma_wgrad(plan: Plan) -> Drawing:
    c, layout, problem = plan.config, plan.layout, plan.problem
    area = Area(
        layout.gemm.rows, problem.taps * layout.gemm.channels, ("gemm_m: y's channels", "gemm_n: taps, x's channels"),
        (c.tile_m, c.tile_n), depth=("gemm_k: pixels", layout.pixels, c.tile_k),
    )  # fmt: skip
    of_a_cluster = f"of a cluster's {c.split_k} blocks, and " if c.split_k > 1 else ""
    return Drawing(
        area, warps(plan, 4 * c.consumers), sizes_of(layout.shared_table[:3]),
        (
            ("x, y", "in global memory"), ("TMA", f"boxes of {c.tile_k} pixels of y, and of x under each tap"),
            ("ring", f"{c.stages} stages of A (y) and B (x)"), ("wgmma", "MN-major operands; sums in registers"),
            ("sums", f"{of_a_cluster}of {c.slices} slices, in order"), ("w", ""),
        ),
    )  # fmt: skip


def tma_halo(plan: Plan) -> Drawing:
    c, layout = plan.config, plan.layout
    *_, w = layout.windows
    rows = -(-c.tile_m // (c.strip + w.reach())) * c.fold
    return Drawing(
        pixels(plan, (rows, c.strip)), warps(plan, 4 * c.consumers),
        rest_of(sizes_of(layout.shared_table[:-1]), plan.launch().shared_bytes),
        (
            ("x, w", "in global memory"), ("TMA", "a box of x with its halo, once for all taps"),
            ("halo tile", "a tap is a shift of wgmma's descriptor"),
            ("wgmma", "sums in registers; those on the halo are dropped"),
            ("epilogue", ""), ("epilogue tile", "stmatrix, then vector stores"), ("y", ""),
        ),
    )  # fmt: skip


def depthwise_stream(plan: Plan) -> Drawing:
    c, layout = plan.config, plan.layout
    memory = [
        (f"{c.stages} slabs", c.stages * layout.slab_bytes), ("results", 2 * layout.staged_bytes),
        ("filters", layout.filter_bytes),
    ]  # fmt: skip
    return Drawing(
        pixels(plan, (c.band, c.strip), (c.tile_p, c.tile_q), "thread tile"),
        warps(plan, layout.consumer_threads // 32),
        rest_of(memory, plan.launch().shared_bytes),
        (
            ("x", "in global memory"), ("TMA", "slabs of rows, each read once; zeros around the image"),
            ("ring", "a band reads several slabs and frees one"),
            ("registers", f"{c.tile_p} x {c.tile_q} outputs by {c.vector} channels"),
            ("epilogue", ""), ("y", "vector stores"),
        ),
    )  # fmt: skip


def depthwise_direct(plan: Plan) -> Drawing:
    c = plan.config
    return Drawing(
        replace(pixels(plan, (c.tile_p, c.tile_q)), by="a thread"), warps(plan),
        (("filters", plan.launch().shared_bytes),),
        (
            ("x", "in global memory and L1"), ("registers", "a row of x, used by every output row above it"),
            ("fma", "filters from shared memory or registers"), ("epilogue", ""), ("y", f"{c.vector} channels at once"),
        ),
    )  # fmt: skip


def depthwise_wgrad(plan: Plan) -> Drawing:
    c, layout = plan.config, plan.layout
    stages = (
        (f"{c.stages} stages of x", c.stages * layout.x_stage),
        (f"{c.stages} stages of y", c.stages * layout.box_room[1]),
    )
    return Drawing(
        pixels(plan, (c.band, layout.box_columns[1]), (c.band, c.tile_q), "a thread"),
        warps(plan, layout.threads // 32),
        rest_of(stages, plan.launch().shared_bytes),
        (
            ("x, y", "in global memory"), ("TMA", "a row for all threads of a block, zeros outside x"),
            ("registers", f"a row of x, and {layout.held} of y"), ("fma", "sums of all taps in registers"),
            ("shared memory", "sums of threads, in order"),
            ("sums", f"of {c.slices} slices, in order"), ("w", ""),
        ),
    )  # fmt: skip


def mma_gemm(plan: Plan) -> Drawing:
    c, layout = plan.config, plan.layout
    memory = ((f"{c.stages} tiles of x", c.stages * c.tile_m * layout.row_bytes),)
    memory += ((f"{c.stages} tiles of w", c.stages * c.tile_n * layout.row_bytes),)
    return Drawing(
        product(plan, plan.problem.k_per_group, layout.walks["x"].depth, c.tile_k),
        warps(plan), memory,
        (
            ("x, w", "in global memory"), ("addresses", "each thread walks gemm_k digit by digit"),
            ("cp.async", "zeros outside x"), ("stages", "swizzled rows"), ("ldmatrix, mma", "sums in registers"),
            ("epilogue", ""), ("y", "runs of neighbors"),
        ),
    )  # fmt: skip


def mma_wgrad(plan: Plan) -> Drawing:
    c, layout, problem = plan.config, plan.layout, plan.problem
    area = Area(
        layout.rows, problem.taps * layout.channels, ("gemm_m: y's channels", "gemm_n: taps, x's channels"),
        (c.tile_m, c.tile_n), depth=("gemm_k: pixels", problem.output_pixels, c.tile_k),
    )  # fmt: skip
    memory = tuple(
        (f"{c.stages} tiles of {name}", c.stages * c.tile_k * extent * problem.x.element.bytes)
        for name, extent in (("y", c.tile_m), ("x", c.tile_n))
    )
    return Drawing(
        area, warps(plan), memory,
        (
            ("x, y", "in global memory"), ("addresses", "each thread walks the pixels"),
            ("cp.async", "rows of pixels, zeros outside x"), ("stages", "swizzled rows"),
            ("ldmatrix, mma", "transposed; sums in registers"), ("sums", f"of {c.slices} slices, in order"), ("w", ""),
        ),
    )  # fmt: skip


def stem(plan: Plan) -> Drawing:
    layout = plan.layout
    memory = [("filters", layout.filter_bytes), ("table", layout.table_bytes)]
    memory.append((f"{plan.config.stages} halo tiles", plan.config.stages * layout.halo_bytes))
    multiply = "wgmma" if plan.kernel == "stem_wgmma" else "mma"
    words = "words of windows into registers"
    return Drawing(
        product(plan, plan.problem.k, plan.problem.taps * plan.problem.c, 16), warps(plan), rest_of(memory, 0),
        (
            ("x", "in global memory"), ("cp.async", "lines of x, after a margin of zeros"),
            ("halo tile", "serves every tap"),
            ("ld.shared", words), (multiply, "filters from shared memory"), ("epilogue", ""), ("y", "runs of channels"),
        ),
    )  # fmt: skip


def stem_wgrad(plan: Plan) -> Drawing:
    c, problem = plan.config, plan.problem
    area = Area(
        problem.k, problem.taps * problem.c, ("gemm_m: y's channels", "gemm_n: taps, x's channels"),
        (c.tile_m, problem.taps * problem.c), depth=("gemm_k: pixels", problem.output_pixels, c.tile_k),
    )  # fmt: skip
    return Drawing(
        area, warps(plan, 4 * c.consumers, "make vectors, ask for y"),
        rest_of(sizes_of(plan.layout.shared_table[:2]), plan.launch().shared_bytes),
        (
            ("x, y", "in global memory"), ("TMA", "A: rows of y, each read once"),
            ("builders", "B: x, element by element, into vectors of 8"),
            ("lines", "vectors of neighboring pixels, for all output rows above them"),
            ("wgmma", "sums in registers"), ("sums", f"of {c.slices} slices, in order"), ("w", ""),
        ),
    )  # fmt: skip


def small_groups(plan: Plan) -> Drawing:
    c, layout = plan.config, plan.layout
    return Drawing(
        pixels(plan, (c.tile_p, plan.problem.output[-1])), warps(plan),
        ((f"{c.stages} halo tiles", c.stages * layout.halo_bytes),),
        (
            ("x", "in global memory"), ("cp.async", f"{layout.halo_rows} rows for {c.tile_p} output rows"),
            ("halo tile", "serves every tap"),
            ("ldmatrix", "a tap is a constant distance"), ("mma", f"{layout.join} groups joined; filters in registers"),
            ("epilogue", ""), ("y", ""),
        ),
    )  # fmt: skip


def im2col(plan: Plan) -> Drawing:
    problem = plan.problem
    area = Area(problem.output_pixels, problem.k, ("pixels", "channels"), (problem.output_pixels, problem.k),
                depth=("c r s", problem.taps * problem.c, problem.taps * problem.c), by="cuBLAS")  # fmt: skip
    return Drawing(
        area, (("of each kernel, without loops", plan.launches[0].block // 32),),
        tuple((w.name.removeprefix("workspace."), w.bytes) for w in plan.workspaces),
        (
            ("x", "in global memory"), ("im2col", "a thread per element"),
            ("lowered", "a matrix in the workspace, in slices"),
            ("cuBLAS", "lowered times w"), ("finish", "epilogue, type and layout"), ("y", ""),
        ),
        "workspace in global memory",
    )  # fmt: skip


def winograd(plan: Plan) -> Drawing:
    c = plan.config
    return Drawing(
        replace(pixels(plan, (c.tile, c.tile)), by="a thread of the transforms"),
        (("of each transform", plan.launches[0].block // 32),),
        tuple((w.name.removeprefix("workspace."), w.bytes) for w in plan.workspaces),
        (
            ("x, w", "in global memory"), ("filter", "u = G w G^T"), ("input", "v = B^T x B, of tiles that overlap"),
            (c.product, f"m = v u^T, a 1x1 convolution of {plan.layout.points} groups"),
            ("output", "A^T m A, and the epilogue"), ("y", ""),
        ),
        "workspaces in global memory",
    )  # fmt: skip


def winograd_fused(plan: Plan) -> Drawing:
    c, layout = plan.config, plan.layout
    return Drawing(
        pixels(plan, (-(-c.tile_quads // c.quads), c.strip)), warps(plan, 4 * c.consumers),
        rest_of(sizes_of(layout.shared_table[:-1]), plan.launch().shared_bytes),
        (
            ("x, w", "in global memory"), ("filter", "u = G w, four points of a filter row, by a launch before"),
            ("TMA", "a box of x with its halo for each of four neighboring pixels, and u"),
            ("ldmatrix", "six pixels of four neighboring outputs"), ("registers", "v = B^T d, of each point"),
            ("wgmma", "m = v u, sums of each point in registers"), ("epilogue", "of A^T m"),
            ("epilogue tile", "stmatrix, then vector stores"), ("y", ""),
        ),
    )  # fmt: skip


def direct(plan: Plan) -> Drawing:
    tensor = plan.problem.result
    rows, columns = (tensor.extent(d) for d in ("h", "w"))
    return Drawing(
        Area(rows, columns, ("h", "w"), (1, 1), by="a thread"),
        (("an output per thread", plan.launches[0].block // 32),), (),
        (("operands", "in global memory and caches"), ("loops", "taps and channels, as the definition reads"),
         ("register", f"{plan.config.tile} sum per thread"), ("epilogue", ""), (tensor.role, "")),
    )  # fmt: skip


#: The spec that a kernel is drawn for, and what reads its plan.
KERNELS: dict[str, tuple[str, Callable[[Plan], Drawing]]] = {
    "tma_im2col": ("tma_im2col_3x3", tma_im2col),
    "tma_wgrad": ("tma_wgrad_3x3", tma_wgrad),
    "tma_plain": ("tma_plain_3x3", tma_plain),
    "tma_halo": ("tma_halo_few_channels", tma_halo),
    "depthwise_stream": ("depthwise_stream", depthwise_stream),
    "depthwise_direct": ("depthwise_nhwc", depthwise_direct),
    "depthwise_wgrad": ("depthwise_wgrad_shared", depthwise_wgrad),
    "mma_gemm": ("implicit_gemm_grouped", mma_gemm),
    "mma_wgrad": ("mma_wgrad", mma_wgrad),
    "stem_wgmma": ("implicit_gemm_first_layer_wgmma", stem),
    "stem_mma": ("implicit_gemm_first_layer", stem),
    "stem_wgrad": ("stem_wgrad", stem_wgrad),
    "small_groups": ("implicit_gemm_cardinality", small_groups),
    "im2col": ("im2col_gemm", im2col),
    "winograd": ("winograd_f32", winograd),
    "winograd_fused": ("winograd_fused", winograd_fused),
    "direct": ("direct_dgrad", direct),
}


def sizes_of(table: Sequence[tuple[str, str]]) -> tuple[tuple[str, int], ...]:
    """Bytes by name, from a layout's table: "4 stages x 128 pixels x 128" is their product."""
    return tuple((name, math.prod(map(int, re.findall(r"\d+", text)))) for name, text in table)


def rest_of(parts: Sequence[tuple[str, int]], total: int) -> tuple[tuple[str, int], ...]:
    """The parts that there are, and what is left of a total: barriers and alignment."""
    left = total - sum(size for _, size in parts)
    return tuple((name, size) for name, size in (*parts, ("barriers, alignment", left)) if size > 0)


def draw(kernel: str) -> str:
    """A kernel's picture, as SVG."""
    name, read = KERNELS[kernel]
    (compilation,) = driver.load(driver.Spec((SPECS / f"{name}.conv").read_text(encoding="utf-8")))
    plan = compilation.plan
    assert plan.kernel == kernel, plan.kernel
    drawing = read(plan)
    memory_y = 358 if drawing.area.depth else 292
    flow_y = memory_y + (58 + 22 * len(drawing.memory) if drawing.memory else 0)
    details = [_wrapped(detail, _letters(drawing.flow)) for _, detail in drawing.flow]
    height = flow_y + 50 + 14 * max(map(len, details))
    picture = Picture(_WIDTH, height, f"{kernel}: tile, warps, memory and data flow for {name}.conv", alone=True)
    picture.rectangle(0, 0, _WIDTH, height, "paper")
    picture.text(_LEFT, 28, kernel, "ink bold big")
    for i, line in enumerate(_wrapped(f"{name}.conv: {plan.config}", 120)):
        picture.text(_LEFT, 46 + 14 * i, line, "quiet small")
    _area(picture, drawing.area, 80)
    _warps(picture, drawing.warps, 430, 80)
    if drawing.memory:
        _memory(picture, drawing, memory_y)
    _flow(picture, drawing.flow, details, flow_y)
    return f"{picture}\n"


def _sides(rows: int, columns: int) -> tuple[float, float]:
    """Pixels of a plane on paper: its shape, but no strip is thinner than a third of its length."""
    ratio = min(max(rows / columns, 1 / 3), 3)
    return (_SIDE, _SIDE / ratio) if ratio > 1 else (_SIDE * ratio, _SIDE)


def _area(picture: Picture, area: Area, y: float) -> None:
    height, width = _sides(area.rows, area.columns)
    left, top = _LEFT + 20, y + 24
    if area.depth:
        name, extent, block = area.depth
        thin = max(_LEAST, min(60, 60 * block / extent))
        picture.rectangle(left, top + 66, 60, height, "b", f"A: {name} {extent}", faint=True)
        picture.rectangle(left + 66, top, width, 60, "d", f"B: {name} {extent}", faint=True)
        left, top = left + 66, top + 66
    tile_h = max(_LEAST, height * min(1, area.tile[0] / area.rows))
    tile_w = max(_LEAST, width * min(1, area.tile[1] / area.columns))
    picture.rectangle(left, top, width, height, "a", " by ".join(area.names), faint=True)
    picture.rectangle(left, top, tile_w, tile_h, "a", "tile")
    if area.depth:
        picture.rectangle(left - 66, top, 60, tile_h, "b", "the tile's rows of A", faint=True)
        picture.rectangle(left - 66, top, thin, tile_h, "b", f"k block of {block}")
        picture.rectangle(left, top - 66, tile_w, 60, "d", "the tile's columns of B", faint=True)
        picture.rectangle(left, top - 66, tile_w, thin, "d", f"k block of {block}")
    if area.part:
        picture.rectangle(
            left, top, max(_LEAST, tile_w * area.part[1] / area.tile[1]),
            max(_LEAST, tile_h * area.part[0] / area.tile[0]), "c", area.part_name,
        )  # fmt: skip
    lines = [f"{name} {extent}, tile {tile}" for name, extent, tile in
             zip(area.names, (area.rows, area.columns), area.tile, strict=True)]  # fmt: skip
    if area.depth:
        lines.append(f"{area.depth[0]} {area.depth[1]}, k block {area.depth[2]}")
    if area.part:
        lines.append(f"{area.part_name} {area.part[0]} x {area.part[1]}")
    picture.text(_LEFT, y + 10, f"what {area.by} computes", "ink bold")
    # beside a plane, or under a flat one, where there is room
    x, y = (left, top + height + 18) if height <= 100 else (left + width + 14, top + 14)
    for i, line in enumerate(lines):
        picture.text(x, y + 18 * i, line, "quiet")


def _warps(picture: Picture, groups: Sequence[tuple[str, int]], x: float, y: float) -> None:
    picture.text(x, y + 10, f"a block's {sum(count for _, count in groups)} warps", "ink bold")
    y += 24
    for color, (name, count) in zip("ab", groups, strict=False):
        for i in range(count):
            picture.rectangle(x + i % 16 * 20, y + i // 16 * 20, 16, 16, color, f"warp: {name}")
        y += 20 * -(-count // 16)
        picture.text(x, y + 12, f"{count}: {name}", "quiet")
        y += 30


def _memory(picture: Picture, drawing: Drawing, y: float) -> None:
    total = sum(size for _, size in drawing.memory)
    picture.text(_LEFT, y, f"{drawing.memory_name}: {total} bytes", "ink bold")
    x, width = float(_LEFT), _WIDTH - 2 * _LEFT
    for color, (name, size) in zip(COLORS, drawing.memory, strict=False):
        picture.rectangle(x, y + 10, max(2, width * size / total - 2), 24, color, f"{name}: {size} bytes")
        x += width * size / total
    y += 34
    for color, (name, size) in zip(COLORS, drawing.memory, strict=False):
        y += 22
        picture.rectangle(_LEFT, y - 10, 10, 10, color)
        picture.text(_LEFT + 18, y, f"{name}: {size}", "quiet")


def _letters(steps: Sequence[object]) -> int:
    """Letters that fit under a step."""
    return int((_WIDTH - 2 * _LEFT) / len(steps) / 6.2)


def _flow(picture: Picture, steps: Sequence[tuple[str, str]], details: Sequence[Sequence[str]], y: float) -> None:
    picture.text(_LEFT, y, "data flow", "ink bold")
    width = (_WIDTH - 2 * _LEFT) / len(steps)
    for i, (title, detail) in enumerate(steps):
        x = _LEFT + i * width
        picture.rectangle(x, y + 12, width - 18, 26, "a", detail, faint=True)
        picture.text(x + (width - 18) / 2, y + 30, title, "ink small", "middle")
        if i + 1 < len(steps):
            picture.text(x + width - 9, y + 30, "\u2192", "ink", "middle")
        for j, line in enumerate(details[i]):
            picture.text(x, y + 54 + 14 * j, line, "quiet small")


def _wrapped(text: str, columns: int) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernel", choices=KERNELS)
    print(draw(parser.parse_args().kernel), end="")
