"""Kernels that call the PTX functions, each made from the function's own rendered signature.

A kernel calls its function twice: a label or a register that is not local to the instruction would clash.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

from convgen.codegen import ptx
from convgen.codegen.render import environment

SIGNATURE = re.compile(
    r"(?:template <(?P<template>[^>]*)>\n)?"
    r"__device__ __forceinline__ (?P<result>\w+) (?P<name>\w+)\((?P<parameters>.*?)\) \{",
    re.DOTALL,
)
#: An argument for each type of parameter.
ARGUMENTS = {
    "u8": "u8(i)", "u16": "u16(i)", "u32": "u32(i)", "u64": "wide", "int": "i", "float": "f",
    "Vec4": "Vec4{1, 2, 3, u32(i)}", "f16": "f16(i)", "bf16": "bf16(i)", "e4m3": "e4m3(i)", "e5m2": "e5m2(i)",
    "const void*": "global", "float*": "global", "const TensorMap*": "&map",
}  # fmt: skip
#: Where a template parameter has no default.
TEMPLATE_ARGUMENTS = {
    "bar_sync": "1, 128",
    "setmaxnreg_dec": "40",
    "setmaxnreg_inc": "104",
    "cp_async_wait_group": "1",
    "bulk_wait_group": "1",
    "bulk_wait_group_read": "1",
    "wgmma_wait_group": "1",
}

_FP8 = ("e4m3", "e5m2")
_S8_N = (8, 16, 24, *range(32, 257, 16))
ALL_N = tuple(range(8, 257, 8))


def wgmma_functions(n: int) -> Iterator[str]:
    pairs = (
        [("16", t, t) for t in ("f16", "bf16")] + [("8", "tf32", "tf32")] + [("32", *p) for p in product(_FP8, _FP8)]
    )
    for (k, a, b), regs in product(pairs, ("", "_rs")):
        yield f"wgmma_m64n{n}k{k}_f32_{a}_{b}{regs}"
    if n in _S8_N:
        yield from (f"wgmma_m64n{n}k32_s32_s8_s8{regs}" for regs in ("", "_rs"))


def _mma() -> Iterator[str]:
    yield from (f"mma_m16n8k{k}_f32_{t}_{t}" for t in ("f16", "bf16") for k in (8, 16))
    yield from (f"mma_m16n8k{k}_f32_tf32_tf32" for k in (4, 8))
    yield from (f"mma_m16n8k{k}_s32_s8_s8" for k in (16, 32))
    yield from (f"mma_m16n8k32_f32_{a}_{b}" for a, b in product(_FP8, _FP8))


#: The members of each family; wgmma's are many and stand in tests of their own.
FAMILIES: dict[str, list[str]] = {
    "ldmatrix": [f"ldmatrix_x{n}{t}" for n in (1, 2, 4) for t in ("", "_trans")],
    "stmatrix": [f"stmatrix_x{n}{t}" for n in (1, 2, 4) for t in ("", "_trans")],
    "cp_async": [f"cp_async_{n}" for n in (4, 8, 16)],
    "tma_load_tile": [f"tma_load_tile_{r}d{m}" for r in (2, 3, 4, 5) for m in ("", "_multicast")],
    "tma_load_im2col": [f"tma_load_im2col_{r}d{m}" for r in (3, 4, 5) for m in ("", "_multicast")],
    "tma_store_tile": [f"tma_store_tile_{r}d" for r in (2, 3, 4, 5)],
    "mma": list(_mma()),
    "arithmetic_x2": [f"{op}_{t}x2" for op in ("add", "sub", "mul") for t in ("f16", "bf16")],
    "wgmma": [],
}
#: The lowest target of what sm_80 does not have, by the beginning of the name.
LOWEST = {
    "wgmma": "sm_90a",
    "setmaxnreg": "sm_90a",
    **dict.fromkeys(("tma_", "mbarrier_", "fence_", "prefetch_", "bulk_", "stmatrix"), "sm_90"),
    **dict.fromkeys(("cluster_", "st_shared_cluster_", "mapa_", "st_async_", "griddepcontrol_"), "sm_90"),
    **dict.fromkeys(("red_global_add_v2_f32", "red_global_add_v4_f32"), "sm_90"),
    **dict.fromkeys(("add_bf16x2", "sub_bf16x2", "mul_bf16x2"), "sm_90"),
    **dict.fromkeys(("mma_m16n8k32_f32_e", "cvt_f32_e", "cvt_e4m3", "cvt_e5m2"), "sm_89"),
}


def lowest_target(name: str) -> str:
    return next((target for prefix, target in LOWEST.items() if name.startswith(prefix)), "sm_80")


#: These stand round every wgmma of the tests below, and mean nothing alone.
WGMMA_ORDER = ("wgmma_fence", "wgmma_commit_group", "wgmma_wait_group")


def catalog() -> Iterator[str]:
    for row in ptx.CATALOGUE:
        if isinstance(row, ptx.Family):
            yield from FAMILIES[row.template]
        else:
            yield row


def split_parameters(text: str) -> list[tuple[str, str, int]]:
    """(type, name, array length or 0) of each parameter."""
    found = []
    for one in filter(None, (p.strip() for p in text.split(","))):
        if array := re.fullmatch(r"(?:const )?(\w+) \(&(\w+)\)\[(\d+)\]", one):
            found.append((array[1], array[2], int(array[3])))
        else:
            kind, name = re.fullmatch(r"(.*[ *])(\w+)", one).groups()
            found.append((kind.strip(), name, 0))
    return found


def kernel_calling(name: str, text: str) -> str:
    """A kernel that calls the function twice, with wgmma's fences round it where it is one."""
    signature = SIGNATURE.search(text)
    assert signature and signature["name"] == name, text
    explicit = TEMPLATE_ARGUMENTS.get(name)
    if signature["template"] and "=" not in signature["template"]:
        assert explicit, f"{name}: no template argument in TEMPLATE_ARGUMENTS"
    callee = f"{name}<{explicit}>" if explicit else name
    parameters = split_parameters(signature["parameters"])
    arguments = ", ".join(p if length else ARGUMENTS[kind] for kind, p, length in parameters)
    arrays = [(kind, p, length) for kind, p, length in parameters if length]
    lines = [f"{kind} {p}[{length}];" for kind, p, length in arrays]
    lines += [f"for (int e = 0; e < {length}; ++e) {p}[e] = {kind}(out[e]);" for kind, p, length in arrays]
    result = signature["result"]
    call = f"{callee}({arguments});" if result == "void" else f"out[1] = {result}({callee}({arguments}))"
    if result in ("Vec2", "Vec4"):
        call = f"out[1] = {callee}({arguments}).x"
    wgmma = name.startswith("wgmma_m")
    lines += ["wgmma_fence();"] * wgmma + [call.rstrip(";") + ";"] * 2
    lines += ["wgmma_commit_group();", "wgmma_wait_group<0>();"] * wgmma
    lines += [f"for (int e = 0; e < {length}; ++e) out[e] = {p}[e];" for kind, p, length in arrays]
    body = "\n  ".join(["float* out = global + 1024 * threadIdx.x;", *lines])
    return (
        f'extern "C" __global__ __launch_bounds__(128, 1) void call_{name}'
        f"(const __grid_constant__ TensorMap map, float* global, int i, float f, u64 wide) {{\n  {body}\n}}\n"
    )


def source_calling(names: list[str], also: tuple[str, ...] = (), guarded: bool = False) -> str:
    """One kernel `call_<name>` a function; `guarded` leaves the functions out for the emulator, as a generated
    file does."""
    env = environment()
    types = env.get_template("types.cuh.j2").render()
    texts = {name: ptx.render_function(env, name) for name in (*also, *names)}
    guards = ("#ifndef CONVGEN_EMULATE", "#endif") if guarded else ("", "")
    return "\n\n".join(
        [types, guards[0], *texts.values(), guards[1], *(kernel_calling(name, texts[name]) for name in names)]
    )
