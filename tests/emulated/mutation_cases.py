"""Kernels to make mutants of, and what becomes of a mutant: a finding, a wrong result, or nothing.

The kernels are the small goldens, by family, and modes that no golden has.  A mutant that nobody notices is listed in
excuses.py, with the reason.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from dynamic_problems import all_sizes, at, manifest
from result_specs import READ_SUMS, SUMS_OF_IMAGES, sums_spec
from runs import emulated_plan
from small_goldens import GEOMETRIES, shrunk, untuned
from special_values import expected, with_specials
from tma_specs import compilation

from convgen.emulator import EmulationError, compiler
from convgen.ir import verify
from convgen.ir.plan import Plan
from convgen.ir.problem import ConvProblem, Op

_STREAM_K = """
conv stream_k {
  input  x: f16[n=150, h=7, w=9, c=56]
  filter w: f16[k=168, r=3, s=1, c=56]
  output y: f16[n, p, q, k]
  pad h=1
  epilogue {
    operand b: f32[k]
    y = relu(acc + b)
  }
  strategy tma_im2col { swap_ab 0  tile m=64 n=80 k=64  stages 2  consumers 1  schedule cooperative  stream_k 1 }
  target sm_90a
}
"""
#: What an epilogue reads is loaded before the taps are added up; a block has two or three bands, one after another.
_SILU_GRADIENT = """
conv a {
  input  x: bf16[n=2, h=9, w=15, c=704]
  filter w: bf16[k=704, r=3, s=3]
  output y: bf16[n, p, q, k]
  op dgrad
  groups 704
  pad 1
  epilogue {
    operand read: bf16[n, h, w, c]
    operand scale: f32[c]
    operand shift: f32[c]
    operand mean: f32[c]
    result s: f32[c]
    result products: f32[c]
    normed = read * scale + shift
    gate = sigmoid(normed)
    g = acc * gate * (1 + normed * (1 - gate))
    s = g
    products = g * (read - mean)
    x = g
  }
  strategy depthwise {
    kernel depthwise_stream  math fma  tile p=2 q=4  vector 2  slice 16  strip 14  band 8
    stages 2  threads 64  blocks 1
  }
  target sm_90a
}
"""
#: Kernels that no golden has: sums of channels, and a bias's gradient, with work for pipelines that come round; tiles
#: of which each has several blocks.
MODES: Mapping[str, str] = {
    "stream-K, tiles in parts": _STREAM_K,
    **{
        f"sums, {how}": sums_spec(f"tma_im2col, {how}").replace("n=3", "n=21").replace("stages 2", ring)
        for how, ring in {
            "swap_ab": "stages 2  k_blocks 1  split_k 1",
            "split_k": "stages 4  k_blocks 1  cluster 2",
            "strided dgrad": "stages 2  k_blocks 1",
        }.items()
    },
    **{
        f"sums of images, {how}": SUMS_OF_IMAGES[how].replace("n=3", "n=21").replace("stages 2", ring)
        for how, ring in dict.fromkeys(("rows", "swap_ab"), "stages 4  k_blocks 1  cluster 2").items()
    },
    **{
        f"{kernel}, sums": f"""conv a {{
          input x: f16[{images}, w=22, c=3]  filter w: f16[k=696, r=3, s=3, c=3]  output y: f16[n, p, q, k]  stride 2
          epilogue {{ operand b: f32[k]  result s: f32[k]  result t: f32[k]  s = acc  t = acc * acc  y = acc + b }}
          strategy implicit_gemm {{ kernel {kernel}  tile m={m} n=16  warps m={warps}  stages 2  blocks 1 }}
          target sm_90a }}"""  # 44 slices of the channels: three blocks of each
        # images of several tiles, at least three of which are a block's: buffers come round
        for kernel, m, warps, images in (("stem_mma", 32, 2, "n=8, h=15"), ("stem_wgmma", 128, 8, "n=5, h=27"))
    },
    "depthwise_stream, SiLU's gradient": _SILU_GRADIENT,
    "mma_wgrad, slices": READ_SUMS["mma_wgrad, slices"].replace("n=2, h=6, w=5", "n=23, h=6, w=6"),
    **{
        name: READ_SUMS[name].replace("n=2, h=6, w=5", "n=5, h=13, w=11")
        for name in ("depthwise_wgrad, cluster", "depthwise_wgrad, slices", "depthwise_wgrad, shared rows")
    },
}

#: Small goldens and modes; a golden whose kernel differs from another's by its size alone stands for both.
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "tma_im2col, cooperative": (
        "tma_im2col_1d", "tma_im2col_1x1", "tma_im2col_3x3", "tma_im2col_3d_dilated", "tma_im2col_residual",
    ),
    "tma_im2col, swapped": ("tma_im2col_channels_as_rows",),
    "tma_im2col, ping-pong": (
        "tma_im2col_pingpong", "tma_im2col_strided_7x7", "tma_im2col_last_channels", "tma_im2col_dilated_far",
    ),
    "tma_im2col, threads store": ("tma_im2col_odd_channels",),
    "tma_im2col, slices and further results": ("tma_im2col_slices", "tma_im2col_further_result"),
    "tma_im2col, multicast": ("tma_im2col_cluster",),
    "tma_im2col, resident": ("tma_im2col_resident", "tma_im2col_one_step", "tma_im2col_resident_cluster"),
    "tma_im2col, split": ("tma_im2col_split_k", "tma_im2col_split_k_cluster", "tma_im2col_split_k_in_place"),
    "tma_im2col, stream-K": ("tma_im2col_stream_k", "stream-K, tiles in parts"),
    "tma_im2col, groups": ("tma_im2col_groups", "tma_im2col_grouped_dgrad"),
    "tma_im2col, strided dgrad": ("tma_im2col_strided_dgrad", "tma_im2col_transposed"),
    "tma_im2col, sums": (
        *("tma_im2col_statistics", "sums, swap_ab", "sums, split_k", "sums, strided dgrad"),
        *("sums of images, rows", "sums of images, swap_ab"),
    ),
    "tma_im2col, dynamic": ("tma_im2col_dynamic",),
    "tma_im2col, prologue": ("tma_im2col_prologue",),
    "tma_im2col, prepare": ("tma_im2col_nchw", "tma_im2col_1x1_nchw"),
    "tma_plain": ("tma_plain_3x3",),
    "tma_halo, resident": (
        "tma_halo_dynamic", "tma_halo_few_channels", "tma_halo_fold", "tma_halo_groups", "tma_halo_last_channels",
        "tma_halo_many_taps",
        "tma_halo_pixels", "tma_halo_residual", "tma_halo_stride",
    ),
    "tma_halo, streamed": ("tma_halo_streamed", "tma_halo_wide_groups"),
    "tma_halo, sums": ("tma_halo_statistics",),
    "tma_halo, three axes": ("tma_halo_three_axes",),
    "tma_halo, dgrad": ("tma_halo_dgrad", "tma_halo_strided_dgrad"),
    "tma_halo, prepare": ("tma_halo_nchw",),
    "depthwise_direct": ("depthwise_nhwc",),
    "depthwise_stream, FMA": ("depthwise_stream", "depthwise_dgrad", "depthwise_strided_dgrad"),
    "depthwise_stream, MMA": ("depthwise_mma", "depthwise_bands"),
    "depthwise_stream, sums": ("depthwise_statistics", "depthwise_gradient_sums"),
    "depthwise_stream, SiLU's gradient": ("depthwise_stream, SiLU's gradient",),
    "depthwise_wgrad": ("depthwise_wgrad", "depthwise_wgrad, cluster", "depthwise_wgrad, slices"),
    "depthwise_wgrad, shared rows": ("depthwise_wgrad_shared", "depthwise_wgrad, shared rows"),
    "mma_gemm": (
        "implicit_gemm_grouped", "implicit_gemm_s8", "implicit_gemm_f32", "implicit_gemm_fp8", "implicit_gemm_planes",
        "implicit_gemm_pieces",
    ),
    "mma_gemm, strided dgrad": ("implicit_gemm_strided_dgrad",),
    "mma_gemm, dynamic": ("implicit_gemm_dynamic",),
    "stem_mma": ("implicit_gemm_first_layer", "tl_conv1d_im2col", "stem_mma, sums"),
    "stem_wgmma": ("implicit_gemm_first_layer_wgmma", "stem_wgmma, sums"),
    "small_groups": ("implicit_gemm_cardinality",),
    "im2col": (
        "im2col_channels", "im2col_gemm", "im2col_lowered", "im2col_pixel", "im2col_planes", "im2col_taps",
        "col2im_gather",
    ),
    "tma_wgrad": ("tma_wgrad_accumulated", "tma_wgrad_3x3", "tma_wgrad_atomic", "tma_wgrad_halo", "tma_wgrad_ends"),
    "tma_wgrad, multicast": ("tma_wgrad_cluster",),
    "mma_wgrad": ("mma_wgrad", "mma_wgrad_few_channels", "mma_wgrad, slices"),
    "stem_wgrad": ("stem_wgrad",),
    "winograd": ("winograd_f32",),
    "winograd_fused": ("winograd_fused", "winograd_fused_streamed"),
    "direct": ("direct_depthwise", "direct_dgrad", "direct_wgrad", "direct_dynamic", "direct_sums"),
}  # fmt: skip

#: Seconds of one core that a mutant may take; one that takes longer does not end.
LIMIT = 120
#: What becomes of a mutant, where it is no kind of finding.
WRONG_RESULT, NOT_COMPILED, DOES_NOT_END, UNNOTICED = "wrong result", "not compiled", "does not end", "unnoticed"


@dataclass(frozen=True)
class Case:
    """A small kernel: its plan and source, inputs, and what comes out."""

    name: str
    sms: int
    plan: Plan
    source: str
    arrays: Mapping[str, np.ndarray]
    expected: tuple[verify.Expectation, ...]  # of all results
    others: tuple[Case, ...] = ()  # the same with other inputs, which may tell of what these do not
    second_sums: bool = True  # False: inputs make no sum that is NaN, and what would be made of one is a wrong number

    def verdict(self, source: str, seeds: Iterable[int]) -> str:
        """The first kind of finding that a seed brings, or another of the verdicts.  Every fourth seed has five
        times the multiprocessors: tiles that one block takes in order otherwise fall to several."""
        for seed in seeds:
            try:
                out = emulated_plan(self.plan, source, self.arrays, seed, self.sms * (5 if seed % 4 == 3 else 1))
            except EmulationError as error:
                kind = error.findings[0].kind
                return NOT_COMPILED if kind == "compile" else kind
            outs = out if isinstance(out, tuple) else (out,)
            made = zip(self.plan.problem.results, outs, self.expected, strict=True)
            if not all(verify.compare_tensor(*one) for one in made):
                return WRONG_RESULT
        return UNNOTICED

    def isolated_verdict(self, source: str, seeds: Iterable[int]) -> str:
        """The same from a process of its own, which may loop for ever or break, and leaves nothing behind."""
        compiler.runtime_library()  # once, and not in each of those processes
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
            os.environ["CONVGEN_CACHE"] = "0"
            try:
                said = self._verdict_without_traces(source, seeds)
                for other in self.others:
                    if said == UNNOTICED:
                        said = other._verdict_without_traces(source, [0])
                os.write(writing, said.encode())
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return DOES_NOT_END if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "crash"
        if not said:
            raise RuntimeError(f"{self.name}: no verdict; the traceback is above")
        return said

    def _verdict_without_traces(self, source: str, seeds: Iterable[int]) -> str:
        source = source if self.second_sums else without_second_sums(source)
        entries = sorted({launch.entry for launch in self.plan.launches})
        folder = compiler.runtime_library().parent
        others = {*folder.iterdir()}
        try:
            compiler.kernel_library(source, entries, checks=True)
            return self.verdict(source, seeds)
        except EmulationError as error:
            kind = error.findings[0].kind
            return NOT_COMPILED if kind == "compile" else kind
        finally:
            for library in {*folder.iterdir()} - others:
                library.unlink()


def without_second_sums(source: str) -> str:
    """Sums that are NaN would hide what is wrong before them: here they become a number that is wrong."""
    return re.sub(r"(float (?:window|filter)_sum\([^{]*\{)", r"\1\n  return 12345.0f;", source)


@cache
def case(name: str) -> Case:
    """The small golden or the mode of this name."""
    with untuned():
        made = compilation(MODES.get(name) or shrunk(name))
        plan, source = made.plan, made.source
    sms = GEOMETRIES[name].sms if name in GEOMETRIES else 1
    problem = plan.problem
    read, *filters = (tensor.role for tensor in problem.reads)
    if _special_windows(problem):
        chosen = [(read, 1), (read, 8), *((role, 1) for role in filters if problem.op is Op.FPROP)]
        main, *rest = (_corners(problem, role, _special(problem, role, times)) for role, times in chosen)
    else:
        main, rest = verify.random_inputs(problem, seed=0), [_centers(problem, read)] if _floats(problem) else []
        if problem.further and problem.op is not Op.WGRAD and _floats(problem):
            rest.append(_special(problem, read, 8))  # y's elements tell of what the sums, all special, do not
        if plan.strategy == "depthwise":
            main = _corners(problem, read, main)
    if plan.strategy == "depthwise" and problem.op is not Op.WGRAD and _floats(problem):
        rest.append(_lone(problem, read))
        if "float filter_sum(" in source:
            rest += [_edges(problem, read), _ends(problem, filters[0])]
    others = [Case(name, sms, plan, source, *_data(plan, arrays)) for arrays in rest]
    if re.search(r"float (window|filter)_sum\(", source):
        finite = _data(plan, verify.random_inputs(problem, seed=0))
        others.insert(0, Case(name, sms, plan, source, *finite, second_sums=False))
    if problem.dynamic:
        resized = _resized(plan)
        finite = verify.random_inputs(resized.problem, seed=0)
        others.append(Case(name, sms, resized, source, *_data(resized, finite, special=False)))
    first = Case(name, sms, plan, source, *_data(plan, main))
    if not all(any(_has_numbers(one, i) for one in (first, *others)) for i in range(len(first.expected))):
        others.append(Case(name, sms, plan, source, *_data(plan, verify.random_inputs(problem, seed=0), special=False)))
        assert all(_has_numbers(others[-1], i) for i in range(len(first.expected))), (
            f"{name}: a result is never a number"
        )
    return replace(first, others=tuple(others))


def _resized(plan: Plan) -> Plan:
    """A dynamic plan at other sizes than the spec's: more of each dim, so that the output has more, too."""
    problem = plan.problem
    sizes = {dim: problem.extent(dim) + more for more, dim in enumerate(problem.dynamic, start=1)}
    fixed = manifest(plan).at(all_sizes(problem, sizes))
    return replace(plan, problem=at(problem, sizes), steps=fixed.steps, workspaces=fixed.workspaces)


def _has_numbers(one: Case, result: int) -> bool:
    """Whether a result is a number in most places, so that what computes another one is noticed."""
    return bool(one.expected[result].special.mean() < 0.5)


def _special_windows(problem: ConvProblem) -> bool:
    """Whether infinities and NaNs tell more than they hide: sums over all pixels hold all that is special."""
    return problem.op is not Op.WGRAD and not problem.further and _floats(problem)


def _special(problem: ConvProblem, role: str, times: int) -> dict[str, np.ndarray]:
    """Inputs with special values, so many times."""
    arrays, *more = (with_specials(problem, role, seed) for seed in range(times))
    for other in more:
        places = ~np.isfinite(other[role])
        arrays[role][places] = other[role][places]
    return arrays


def _centers(problem: ConvProblem, role: str) -> dict[str, np.ndarray]:
    """Inputs with one NaN, far from borders: there wgrad may multiply what is special by padding."""
    arrays = verify.random_inputs(problem, seed=0)
    arrays[role][tuple(extent // 2 for extent in arrays[role].shape)] = np.nan
    return arrays


def _edges(problem: ConvProblem, role: str) -> dict[str, np.ndarray]:
    """Inputs of which each channel has an infinity at an end of a row: some taps of wgrad see it, and others meet it
    where they have zeros.  The first channel has a NaN, in the first pixel: what sees it is computed again."""
    arrays = verify.random_inputs(problem, seed=0)
    tensor = problem.tensor(role)
    for channel in range(problem.c):
        at = {d: channel % tensor.extent(d) for d in tensor.dims}
        at |= {"c": channel, problem.spatial.input[-1]: -(channel % 2)}
        arrays[role][tuple(at[d] for d in tensor.dims)] = np.inf if channel else np.nan
    return arrays


def _lone(problem: ConvProblem, role: str) -> dict[str, np.ndarray]:
    """Inputs of which eight channels have one infinity: in another channel of the next eight, at another pixel of the
    next sixty-four.  Where threads or MMAs have eight channels, only some of their sums tell that one is to be computed
    again."""
    arrays = verify.random_inputs(problem, seed=0)
    tensor = problem.tensor(role)
    pixels = {d: tensor.extent(d) for d in tensor.dims if d not in "ck"}
    (channels,) = (d for d in tensor.dims if d in "ck")
    for first in range(0, tensor.extent(channels) - 7, 8):
        eighth = first // 8
        at = {d: eighth // 8 % extent for d, extent in pixels.items()} | {channels: first + eighth % 8}
        arrays[role][tuple(at[d] for d in tensor.dims)] = np.inf
    return arrays


def _ends(problem: ConvProblem, role: str) -> dict[str, np.ndarray]:
    """Inputs of which one, y of wgrad, begins and ends with an infinity: filters that meet it and padding are computed
    again, up to the last pixel."""
    arrays = verify.random_inputs(problem, seed=0)
    arrays[role].flat[[0, -1]] = np.inf
    return arrays


def _floats(problem: ConvProblem) -> bool:
    return problem.reads[0].dtype in ("f16", "bf16", "f32")


def _corners(problem: ConvProblem, role: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Infinities at the corners: windows there end beyond the border."""
    if _floats(problem) and role == problem.reads[0].role:
        arrays[role].flat[[0, -1]] = np.inf
    return arrays


def _data(
    plan: Plan, arrays: dict[str, np.ndarray], special: bool = True
) -> tuple[dict[str, np.ndarray], tuple[verify.Expectation, ...]]:
    """Inputs, their operands with zeros and, if these are special, NaNs, and what comes out."""
    problem = plan.problem
    opening = problem.prologue.operands if problem.prologue else ()  # each of whose elements all results have
    for operand in problem.operands:
        if special and operand.dtype in ("f16", "bf16", "f32") and operand not in opening:
            arrays[operand.name].flat[2:4] = np.nan
        arrays[operand.name].flat[1::3] = 0  # at which comparisons change their minds; no factor of all results
    right = expected(problem, arrays, plan.arithmetic)
    return arrays, (right, *verify.expect_all(problem, arrays, arithmetic=plan.arithmetic)[1:])
