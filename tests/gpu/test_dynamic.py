"""Sizes that a call decides, on a GPU: one kernel for all of them, exact, from any thread, without a compiler."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from dynamic_problems import all_sizes, at
from tma_specs import integers, rounded

from convgen import driver, requests
from convgen.ir.reference import decode, references
from convgen.runtime import artifacts, nvrtc
from convgen.runtime.errors import WrongShape
from convgen.runtime.kernel import Kernel
from convgen.spec import Spec
from convgen.targets import Target

cupy = pytest.importorskip("cupy")

SIZES = [(8, 14, 14), (1, 14, 14), (3, 7, 9), (64, 1, 5), (2, 57, 56), (5, 31, 3)]
SPECS = {
    "direct": "x: f32[n=8, c=20, h=14, w=14] filter w: f32[k=24, c=20, r=3, s=3] output y: f32[n, k, p, q] pad 1"
    " stride 2 strategy direct",
    "3x3": "x: f16[n=8, h=14, w=14, c=64] filter w: f16[k=64, r=3, s=3, c=64] output y: f16[n, p, q, k] pad 1"
    " epilogue { operand b: f32[k] y = relu(acc + b) }",
    "residual": "x: f16[n=8, h=14, w=14, c=128] filter w: f16[k=256, c=128] output y: f16[n, p, q, k]"
    " epilogue { operand b: f32[k] operand z: f16[n, p, q, k] y = relu(acc + b + z) }",
    "strided": "x: f16[n=8, h=14, w=14, c=72] filter w: f16[k=136, r=3, s=3, c=72] output y: f16[n, p, q, k] pad 1"
    " stride 2 strategy tma_im2col { schedule pingpong consumers 2 }",
    "cluster": "x: f16[n=8, h=14, w=14, c=64] filter w: f16[k=256, r=3, s=3, c=64] output y: f16[n, p, q, k] pad 1"
    " strategy tma_im2col { cluster 2 multicast b tile m=128 n=128 }",
    "split_k": "x: f16[n=8, h=14, w=14, c=512] filter w: f16[k=64, r=3, s=3, c=512] output y: f16[n, p, q, k] pad 1"
    " strategy tma_im2col { split_k 4 swap_ab 0 }",
    "first layer": "x: f16[n=8, h=14, w=14, c=3] filter w: f16[k=64, r=7, s=7, c=3] output y: f16[n, p, q, k] pad 3"
    " stride 2 epilogue { operand b: f32[k] y = relu(acc + b) } strategy implicit_gemm",
    "dgrad": "x: f16[n=8, h=14, w=14, c=64] filter w: f16[k=72, r=3, s=3, c=64] output y: f16[n, p, q, k] pad 1"
    " op dgrad strategy tma_im2col",
    "groups": "x: f16[n=8, h=14, w=14, c=64] filter w: f16[k=64, r=3, s=3, c=16] output y: f16[n, p, q, k] pad 1"
    " groups 4 strategy implicit_gemm { kernel mma_gemm }",
    "depthwise_stream, fma": "x: f16[n=8, h=30, w=45, c=96] filter w: f16[k=96, r=3, s=3] output y: f16[n, p, q, k]"
    " pad 1 stride 2 groups 96 epilogue { operand b: f32[k] operand z: f16[n, p, q, k] y = relu(acc + b + z) }"
    " strategy depthwise { kernel depthwise_stream math fma }",
    "depthwise_stream, mma": "x: f16[n=8, h=14, w=14, c=128] filter w: f16[k=128, r=7, s=7] output y: f16[n, p, q, k]"
    " pad 3 groups 128 epilogue { operand b: f32[k] y = acc + b }"
    " strategy depthwise { kernel depthwise_stream math mma }",
    "tma_halo, strips": "x: f16[n=8, h=45, w=38, c=64] filter w: f16[k=64, r=3, s=3, c=64]"
    " output y: f16[n, p, q, k] pad 1 epilogue { operand b: f32[k] operand g: f32[n, k] y = relu((acc + b) * g) }"
    " strategy tma_halo { strip 19 }",
    "tma_halo, streamed": "x: f16[n=8, h=30, w=28, c=128] filter w: f16[k=128, r=3, s=3, c=128]"
    " output y: f16[n, p, q, k] pad 1 stride 2 strategy tma_halo { weight_stages 2 }",
    "tma_halo, groups": "x: f16[n=8, h=28, w=28, c=64] filter w: f16[k=64, r=3, s=3, c=8]"
    " output y: f16[n, p, q, k] pad 1 groups 8 strategy tma_halo",
    "tma_halo, three axes": "x: f16[n=8, d=5, h=14, w=14, c=32] filter w: f16[k=32, t=3, r=3, s=3, c=32]"
    " output y: f16[n, o, p, q, k] pad 1 strategy tma_halo",
    "depthwise_direct": "x: f16[n=8, h=14, w=14, c=40] filter w: f16[k=40, r=3, s=3] output y: f16[n, p, q, k] pad 1"
    " stride 2 groups 40 epilogue { operand b: f32[k] operand z: f16[n, p, q, k] y = relu(acc + b + z) }"
    " strategy depthwise { kernel depthwise_direct }",
    "depthwise_direct, dgrad": "x: f16[n=8, h=14, w=14, c=40] filter w: f16[k=40, r=3, s=3] output y: f16[n, p, q, k]"
    " pad 1 groups 40 op dgrad strategy depthwise { kernel depthwise_direct }",
    "channels as rows": "x: f16[n=8, h=14, w=14, c=64] filter w: f16[k=128, r=3, s=3, c=64] output y: f16[n, p, q, k]"
    " pad 1 strategy tma_im2col { swap_ab 1 tile m=48 n=64 }",
}

#: Layers of kernels that take the number of images alone.
IMAGES = {
    "depthwise_stream, dgrad": "x: f16[n=8, h=28, w=28, c=96] filter w: f16[k=96, r=3, s=3] output y: f16[n, p, q, k]"
    " pad 1 stride 2 groups 96 op dgrad strategy depthwise { kernel depthwise_stream }",
    "tma_im2col, gate": "x: f16[n=8, h=14, w=14, c=64] filter w: f16[k=128, r=3, s=3, c=64] output y: f16[n, p, q, k]"
    " pad 1 epilogue { operand g: f32[n, k] operand z: f16[n, p, q, k] y = relu(acc * g + z) } strategy tma_im2col",
    "tma_im2col, prologue": "x: f16[n=8, h=14, w=14, c=64] filter w: f16[k=128, c=64] output y: f16[n, p, q, k]"
    " prologue { operand s: f32[c] operand e: f16[n, c] x = relu(x * s) * e } strategy tma_im2col",
    "tma_halo, images": "x: f16[n=8, h=7, w=7, c=32] filter w: f16[k=64, r=3, s=3, c=32]"
    " output y: f16[n, p, q, k] pad 1 epilogue { operand b: f32[k] operand z: f16[n, p, q, k] y = relu(acc + b + z) }"
    " strategy tma_halo { images 2 }",
    "tma_halo, dgrad": "x: f16[n=8, h=28, w=28, c=64] filter w: f16[k=32, r=3, s=3, c=64]"
    " output y: f16[n, p, q, k] pad 1 op dgrad strategy tma_halo",
    "small_groups": "x: f16[n=8, h=28, w=28, c=128] filter w: f16[k=128, r=3, s=3, c=4] output y: f16[n, p, q, k] pad 1"
    " groups 32 epilogue { operand b: f32[k] y = relu(acc + b) } strategy implicit_gemm { kernel small_groups }",
    "stem_mma": "x: f16[n=8, c=3, h=45, w=38] filter w: f16[k=24, c=3, r=3, s=3] output y: f16[n, p, q, k] pad 1"
    " stride 2 epilogue { operand b: f32[k] y = relu(acc + b) } strategy implicit_gemm { kernel stem_mma }",
    "stem_mma, f32": "x: f32[n=8, h=45, w=38, c=3] filter w: f32[k=64, r=3, s=3, c=3] output y: f32[n, p, q, k] pad 1"
    " strategy implicit_gemm { kernel stem_mma math tf32x3 }",
    "stem_wgmma": "x: f16[n=8, h=67, w=56, c=3] filter w: f16[k=64, r=7, s=7, c=3] output y: f16[n, p, q, k] pad 3"
    " stride 2 epilogue { operand b: f32[k] y = relu(acc + b) } strategy implicit_gemm { kernel stem_wgmma }",
}


def compiled(name: str, target: Target) -> tuple[driver.Compilation, Kernel]:
    if name != "direct" and "wgmma" not in target.features:
        pytest.skip(f"{target} has no wgmma")
    text = f"dynamic n h w input {SPECS[name]}" if name in SPECS else f"dynamic n input {IMAGES[name]}"
    (compilation,) = driver.load(Spec(f"conv layer {{ {text} }}", target=target.name))
    return compilation, compilation.kernel()


def check(compilation: driver.Compilation, kernel: Kernel, sizes: tuple[int, int, int], seed: int) -> None:
    """A call with arrays of integers gives their sums exactly, and `launch_raw` and a second call the same."""
    problem = compilation.request.problem
    problem = at(problem, {d: size for d, size in zip("nhw", sizes, strict=True) if d in problem.dynamic})
    arrays = integers(problem, seed)
    given = [cupy.asarray(arrays[t.buffer]) for t in problem.arguments]
    y = kernel(*given)
    (right,) = references(problem, arrays)
    dtype = problem.result.dtype
    assert (decode(cupy.asnumpy(y), dtype) == rounded(right, dtype)).all(), f"{sizes}, seed {seed}\n{kernel.source}"
    out = cupy.empty_like(y)
    for _ in range(2):  # the second is the quick one
        out.view("u1").fill(0xFF)
        assert kernel(*given, out=out) is out
        assert (out.view("u1") == y.view("u1")).all()
    assert (kernel.launch_raw(*given).view("u1") == y.view("u1")).all()


@pytest.mark.parametrize("name", SPECS)
def test_every_size_is_exact(target: Target, name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compilation, kernel = compiled(name, target)
    kernel.raw_module()
    monkeypatch.setattr(nvrtc, "compile_source", lambda *_: pytest.fail("a call has compiled"))
    for sizes in SIZES:
        check(compilation, kernel, sizes, seed)


@pytest.mark.parametrize("name", IMAGES)
def test_every_number_of_images_is_exact(target: Target, name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compilation, kernel = compiled(name, target)
    kernel.raw_module()
    monkeypatch.setattr(nvrtc, "compile_source", lambda *_: pytest.fail("a call has compiled"))
    for n in (8, 1, 3, 64, 2, 17):
        check(compilation, kernel, (n, 0, 0), seed)


def test_every_plan_of_a_kernel_is_exact(target: Target, seed: int) -> None:
    if "wgmma" not in target.features:
        pytest.skip(f"{target} has no wgmma")
    spec = Spec(f"conv layer {{ dynamic n h w input {SPECS['3x3']} }}", target=target.name, images=(1, 16, 256))
    ((compilation,), kernels) = driver.load(spec), requests.compile_all(spec)
    kernel, sizes = kernels["layer"], [(n, 14, 14) for n in (1, 3, 16, 40, 256)]
    taken = {kernel.class_at(n=n, h=h, w=w).manifest.config for n, h, w in sizes}
    assert len(taken) == len(kernel.classes) > 1
    for some in (*sizes, (2, 57, 56), *sizes):
        check(compilation, kernel, some, seed)


@pytest.mark.parametrize("name", ["direct", "channels as rows"])
def test_a_dynamic_kernel_gives_what_the_kernel_of_fixed_sizes_gives(target: Target, name: str, rng) -> None:
    compilation, kernel = compiled(name, target)
    for sizes in SIZES[:3]:
        problem = at(compilation.request.problem, dict(zip("nhw", sizes, strict=True)))
        plan = compilation.choice.strategy.plan(problem, target, compilation.plan.options)
        fixed = Kernel(artifacts.build(driver.render(plan), plan))
        given = [cupy.asarray(rng.standard_normal(t.shape), dtype=t.element.numpy) for t in problem.arguments]
        assert (kernel(*given).view("u1") == fixed(*given).view("u1")).all(), f"{sizes}"


def test_threads_share_a_kernel(target: Target, seed: int) -> None:
    compilation, kernel = compiled("3x3", target)

    def call(i: int) -> None:
        with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True) as stream:
            check(compilation, kernel, SIZES[i % len(SIZES)], seed)
            stream.synchronize()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(call, range(24)))


def test_what_is_beyond_the_kernel_is_refused(target: Target) -> None:
    compilation, kernel = compiled("3x3", target)
    sizes = {"n": 60000, "h": 200, "w": 200}
    assert all_sizes(compilation.request.problem, sizes)["p"] == 200
    with pytest.raises(WrongShape, match=r"gives \d+ .+; it goes up to"):
        kernel.at(**sizes)


def test_a_graph_replays_each_size(target: Target, rng) -> None:
    _, kernel = compiled("3x3", target)
    stream = cupy.cuda.Stream(non_blocking=True)
    for n, h in ((4, 14), (9, 20)):
        x, w = (cupy.asarray(rng.standard_normal(s), dtype="f2") for s in ((n, h, h, 64), (64, 3, 3, 64)))
        b = cupy.zeros(64, "f4")
        expected = kernel(x, w, b)
        out = cupy.zeros_like(expected)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            kernel(x, w, b, out=out)
            graph = stream.end_capture()
            graph.launch(stream)
            stream.synchronize()
        assert (out.view("u1") == expected.view("u1")).all()
