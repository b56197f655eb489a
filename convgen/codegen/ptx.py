"""The PTX functions: one instruction, one small function, one file in templates/ptx/.

A kernel template calls them by name.  `functions_used` finds the names in the rendered body and renders
just those, so a kernel carries only what it needs.  These functions, with the CUDA built-ins, are also
the seam at which the emulator gives each instruction its meaning (emulator/include/convgen_emulator.h).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import jinja2


@dataclass(frozen=True)
class Family:
    """Functions that differ in a number or a type: the pattern's groups are the template's values."""

    template: str
    pattern: str


_TYPES = "f16|bf16|tf32|e4m3|e5m2|s8"
#: In the order in which they stand in generated source.  A plain name is a file of that name.
CATALOGUE: tuple[str | Family, ...] = (
    "shared_address",
    "ld_shared_u8",
    "ld_shared_u16",
    "ld_shared_u32",
    "ld_shared_u64",
    "ld_shared_v2_f32",
    "ld_shared_v4_u32",
    "ld_shared_v4_f32",
    "st_shared_u8",
    "st_shared_u16",
    "st_shared_u32",
    "st_shared_u64",
    "st_shared_v2_u32",
    "st_shared_v4_u32",
    "st_shared_cluster_v4_f32",
    "mapa_shared_cluster",
    "st_async_v4_f32",
    Family("ldmatrix", r"ldmatrix_x(?P<count>[124])(?P<trans>_trans)?"),
    Family("stmatrix", r"stmatrix_x(?P<count>[124])(?P<trans>_trans)?"),
    Family("cp_async", r"cp_async_(?P<bytes>4|8|16)"),
    "cp_async_commit_group",
    "cp_async_wait_group",
    "mbarrier_init",
    "fence_mbarrier_init",
    "mbarrier_arrive",
    "mbarrier_arrive_cluster",
    "mbarrier_arrive_expect_tx",
    "mbarrier_wait_parity",
    "prefetch_tensormap",
    Family("tma_load_tile", r"tma_load_tile_(?P<rank>[2345])d(?P<multicast>_multicast)?"),
    Family("tma_load_im2col", r"tma_load_im2col_(?P<rank>[345])d(?P<multicast>_multicast)?"),
    Family("tma_store_tile", r"tma_store_tile_(?P<rank>[2345])d"),
    "bulk_commit_group",
    "bulk_wait_group",
    "bulk_wait_group_read",
    "fence_proxy_async_shared",
    "wgmma_fence",
    "wgmma_commit_group",
    "wgmma_wait_group",
    Family(
        "wgmma",
        rf"wgmma_m64n(?P<n>\d+)k(?P<k>\d+)_(?P<d_type>f32|s32)_(?P<a_type>{_TYPES})_(?P<b_type>{_TYPES})(?P<a_regs>_rs)?",
    ),
    Family("mma", rf"mma_m16n8k(?P<k>\d+)_(?P<d_type>f32|s32)_(?P<a_type>{_TYPES})_(?P<b_type>{_TYPES})"),
    "setmaxnreg_dec",
    "setmaxnreg_inc",
    "bar_sync",
    "cluster_ctarank",
    "cluster_arrive",
    "cluster_arrive_relaxed",
    "cluster_wait",
    "griddepcontrol_wait",
    "griddepcontrol_launch_dependents",
    "red_global_add_f32",
    "red_global_add_v2_f32",
    "red_global_add_v4_f32",
    "selp_f32",
    "fma_if_f32",
    Family("arithmetic_x2", r"(?P<op>add|sub|mul)_(?P<type>f16|bf16)x2"),
    "max_nan_f32",
    "min_nan_f32",
    "exp2_approx_f32",
    "reciprocal_approx_f32",
    "cvt_f32_f16",
    "cvt_f16_f32",
    "cvt_f16x2_f32",
    "cvt_f32_bf16",
    "cvt_bf16_f32",
    "cvt_bf16x2_f32",
    "cvt_f32_e4m3",
    "cvt_e4m3_f32",
    "cvt_f32_e5m2",
    "cvt_e5m2_f32",
    "cvt_s8_f32",
    "cvt_tf32_f32",
)


@cache
def _matchers() -> tuple[tuple[int, re.Pattern[str], str], ...]:
    rows = []
    for i, row in enumerate(CATALOGUE):
        if isinstance(row, Family):
            rows.append((i, re.compile(row.pattern), row.template))
        else:
            rows.append((i, re.compile(re.escape(row)), row))
    return tuple(rows)


@cache
def lookup(name: str) -> tuple[int, str, Mapping[str, str]] | None:
    """Place in the catalog, template and values of a function name; None for any other name."""
    for i, pattern, template in _matchers():
        if found := pattern.fullmatch(name):
            return i, template, {k: v or "" for k, v in found.groupdict().items()}
    return None


def functions_used(body: str) -> list[str]:
    """Names of the PTX functions that a source text calls, in catalog order."""
    called = set(re.findall(r"\b([a-z][a-z0-9_]*)\s*[<(]", body))
    known = [(found[0], name) for name in called if (found := lookup(name))]
    return [name for _, name in sorted(known)]


@cache
def render_function(environment: jinja2.Environment, name: str) -> str:
    found = lookup(name)
    if found is None:
        raise KeyError(name)
    _, template, values = found
    more = _COUNTED.get(template, lambda _: {})(values)
    return environment.get_template(f"ptx/{template}.cuh.j2").render(name=name, **values, **more).strip()


# ---- numbers of an asm statement's operands, which follow from a family's values -------------------

_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "e4m3": 8, "e5m2": 8}


def _mma(values: Mapping[str, str]) -> Mapping[str, object]:
    """Registers of 32 bits over 32 lanes: a is 16 x k, b is k x 8; d's four come first."""
    a = 16 * int(values["k"]) * _BITS[values["a_type"]] // 1024
    return {"a_count": a, "b_count": a // 2, "first_b": 4 + a}


def _wgmma(values: Mapping[str, str]) -> Mapping[str, object]:
    """d, then a (a descriptor or four registers), b, whether to accumulate, then how operands lie, which 16-bit types
    alone may choose."""
    d = int(values["n"]) // 2
    b = d + (4 if values["a_regs"] else 1)
    names = ([] if values["a_regs"] else ["a_major"]) + ["b_major"]
    majors = names if values["a_type"] in ("f16", "bf16") else []
    numbered = list(zip(majors, (b + 2, b + 3), strict=False))
    return {"regs": d, "last": d - 1, "b": b, "accumulates": b + 1, "majors": numbered}


def _box(values: Mapping[str, str]) -> Mapping[str, object]:
    """The coordinates of a box, the operands after them and, for im2col, the offsets in between."""
    rank = int(values["rank"])
    axes, behind = ["w", "h", "d"][: rank - 2], 3 + rank
    return {"n": rank, "axes": axes, "first_offset": behind, "blocks": {"tile": behind, "im2col": behind + len(axes)}}


_COUNTED: Mapping[str, Callable[[Mapping[str, str]], Mapping[str, object]]] = {
    "mma": _mma, "wgmma": _wgmma, "tma_load_tile": _box, "tma_load_im2col": _box, "tma_store_tile": _box,
}  # fmt: skip
