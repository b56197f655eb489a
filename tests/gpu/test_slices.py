"""Channel slices on a GPU: right results, nothing written beside them; functions, and networks that concatenate."""

from __future__ import annotations

import pytest
from slice_specs import KERNELS

from convgen import driver
from convgen import functional as F
from convgen.bench.backend import CupyBackend
from convgen.bench.measure import Checker
from convgen.spec import Spec
from convgen.targets import Target

cupy = pytest.importorskip("cupy")


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_take_slices(target: Target, name: str) -> None:
    if ("tma" in name or "wgmma" in name or "stream" in name) and "tma" not in target.features:
        pytest.skip(f"{target} has no TMA")
    if name.startswith("im2col"):
        pytest.importorskip("cupy_backends.cuda.libs.cublas")
    (compilation,) = driver.load(Spec(f"conv a {{ {KERNELS[name]} }}", target=target.name))
    problem, kernel, backend = compilation.request.problem, compilation.kernel(), CupyBackend()
    report = Checker(problem, backend, 1)(kernel, kernel.manifest.arithmetic)
    assert report, report
    with backend.stream():
        inputs = [backend.normal(t) for t in problem.arguments]
        outs = tuple(backend.poisoned(t) for t in problem.results)
        given = outs if len(outs) > 1 else outs[0]
        for _ in range(3):  # the second call is the quick one
            assert kernel(*inputs, out=given) is given
        again = kernel.launch_raw(*inputs)
        for tensor, out, raw in zip(problem.results, outs, again if len(outs) > 1 else (again,), strict=True):
            if "method scatter" not in KERNELS[name]:  # whose atomic additions come in any order
                assert (cupy.ascontiguousarray(out).view("u1") == cupy.ascontiguousarray(raw).view("u1")).all()
            if tensor.pitch:
                beside = cupy.ascontiguousarray(out.base.reshape(tensor.whole.shape)[..., tensor.row :])
                assert (beside.view("u1") == 0xFF).all()


def test_functions_read_and_write_slices_where_they_lie(rng) -> None:
    whole = cupy.asarray(rng.standard_normal((2, 9, 10, 48)), dtype="f2").transpose(0, 3, 1, 2)
    w, before = cupy.asarray(rng.standard_normal((8, 16, 3, 3)), dtype="f2"), whole.copy()
    for x, out in ((whole[:, :16], whole[:, 40:]), (whole[:, 4:20], whole[:, 24:32])):  # the second is copied
        assert F.conv2d(x, w, padding=1, out=out) is out
        expected = F.conv2d(cupy.ascontiguousarray(x), w, padding=1)
        cupy.testing.assert_allclose(out.astype("f4"), expected.astype("f4"), rtol=2e-3, atol=1e-2)
    for left in (slice(0, 24), slice(32, 40)):
        assert (whole[:, left] == before[:, left]).all()


@pytest.mark.parametrize("options", [{}, {"inductor": False}, {"measure": False}])
def test_a_block_of_densenet_is_one_tensor(options, torch_draws) -> None:
    torch = pytest.importorskip("torch")
    import convgen.torch as ct

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.BatchNorm2d(64 + 32 * i) for i in range(3))
            self.a = torch.nn.ModuleList(torch.nn.Conv2d(64 + 32 * i, 128, 1) for i in range(3))
            self.b = torch.nn.ModuleList(torch.nn.Conv2d(128, 32, 3, padding=1) for i in range(3))

        def forward(self, x):
            for norm, a, b in zip(self.norms, self.a, self.b, strict=True):
                x = torch.cat([x, b(torch.relu(a(torch.relu(norm(x)))))], 1)
            return x

    model, x = Block().cuda().half().eval(), torch.randn(8, 64, 28, 28, device="cuda", dtype=torch.float16)
    fast = ct.optimize(model, x, **options)
    if "measure" in options:
        assert "3 concatenations are written in place" in fast.report.notes
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-2, atol=1e-2)
