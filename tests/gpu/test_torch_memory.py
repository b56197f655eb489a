"""What convgen.torch takes of a GPU's memory, by torch's allocator."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen import driver  # noqa: E402
from convgen.runtime import scratch  # noqa: E402
from convgen.torch.launch import served  # noqa: E402

nn, TF = torch.nn, torch.nn.functional
LAST = dict(memory_format=torch.channels_last)
pytestmark = pytest.mark.usefixtures("torch_cuda", "torch_draws")
MB = 1 << 20


def image(*shape: int):
    return torch.randn(*shape, device="cuda").half().to(**LAST)


def most(call) -> int:
    """Bytes that a call takes at a time, results included."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        call()
    return torch.cuda.max_memory_allocated() - before


class Joins(nn.Module):
    """Concatenations one after the other, none of which is read by what follows the next."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.a = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in range(count))
        self.b = nn.ModuleList(nn.Conv2d(64, 64, 1) for _ in range(count))
        self.c = nn.ModuleList(nn.Conv2d(128, 64, 1) for _ in range(count))

    def forward(self, x):
        for a, b, c in zip(self.a, self.b, self.c, strict=True):
            x = c(torch.cat([a(x).relu(), b(x).relu()], 1)).relu()
        return x


@pytest.mark.parametrize("inductor", [False, True])
def test_a_concatenation_is_given_back_when_it_was_read(inductor):
    x, bytes_of = image(8, 64, 64, 64), {}
    for count in (2, 6):
        model = Joins(count).eval().half().cuda().to(**LAST)
        ready = ct.optimize(model, x, measure=False, inductor=inductor)
        assert f"{count} concatenations are written in place" in ready.report.notes
        with torch.no_grad():
            ready(x)
        bytes_of[count] = most(lambda ready=ready: ready(x))
    assert bytes_of[6] == bytes_of[2] <= 4 * x.nbytes


def test_scratch_memory_is_torch_s():
    """Calls on two streams, and in a graph, which has a workspace of its own for as long as it lives."""
    import cupy

    x, w = image(8, 36, 28, 28), image(36, 36, 3, 3)
    arguments = x, w, [], "relu", [1, 1], [1, 1], [1, 1], 1
    serving = served(*arguments)
    (convolution,) = driver.load(driver.Spec(serving.spec, "spec", {}))
    assert convolution.plan.workspace_bytes  # else this tests nothing
    expected = TF.conv2d(x.double(), w.double(), padding=1).relu()

    def near(found) -> None:
        assert (found.double() - expected).norm() <= 2e-3 * expected.norm()

    taken = cupy.get_default_memory_pool().used_bytes()
    other = torch.cuda.Stream()
    for _ in range(3):
        near(serving.launch(x, w, []))
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            near(serving.launch(x, w, []))
        torch.cuda.current_stream().wait_stream(other)
    assert cupy.get_default_memory_pool().used_bytes() == taken
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = serving.launch(x, w, [])
    for _ in range(2):
        found.zero_()
        graph.replay()
        torch.full_like(expected, float("nan"))  # whoever takes torch's memory meanwhile
        near(found)


def test_what_measuring_took_is_given_back(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))  # nothing is known of any time
    model = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 36, 1), nn.Flatten(2)).eval()
    model, x = model.half().cuda().to(**LAST), image(32, 64, 56, 56)
    ready = ct.optimize(model, x, inductor=False)
    assert all(row.us for row in ready.report), str(ready.report)
    gc.collect()
    held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    assert held <= 64 * MB < most(lambda: ct.optimize(model, image(40, 64, 56, 56), inductor=False))
    if scratch._capture_pool.cache_info().currsize:
        assert scratch._capture_pool().free_bytes() == 0
