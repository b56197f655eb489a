"""Networks within which sizes depend on data, as the number of objects in an image does."""

from __future__ import annotations

import warnings
from collections import deque

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import convgen.torch as ct  # noqa: E402
from convgen.torch.network import backend, prepare  # noqa: E402

COUNTS = (7, 3, 5, 2, 9, 4, 11, 6, 13, 8, 12, 10)


class Detector(nn.Module):
    """A head of convolutions for the images that are chosen, and boxes of what it finds."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)

    def forward(self, x):
        chosen = x.flatten(1).amax(1) > 0
        found = self.head(self.features(x).relu()[chosen]).mean((2, 3))
        corners = found[found[:, 0] > -1e3]
        return corners.sin() * 2, corners.sum()


def images(count: int):
    """So many that are chosen, and one that is not."""
    x = torch.randn(count + 1, 3, 8, 8)
    x[count] = -1
    return x


@pytest.mark.parametrize("inductor", [False, True])
def test_graphs_of_sizes_that_change_are_prepared_for_a_few(inductor, monkeypatch):
    reports = deque()
    monkeypatch.setattr(backend, "_reports", reports)
    monkeypatch.setattr(backend, "MOST_KINDS", 2)
    torch.compiler.reset()
    model = Detector().eval()
    fast = torch.compile(model, backend=ct.compile_graph, options={"inductor": inductor})
    with torch.no_grad():
        for count in COUNTS[:6]:
            x = images(count)
            for made, own in zip(fast(x), model(x), strict=True):
                torch.testing.assert_close(made, own, rtol=1e-4, atol=1e-4)
    # Dynamo compiles some graphs twice, for the first sizes and then for symbols
    of_convolutions = [report for report in reports if report.rows]
    assert 0 < len(of_convolutions) <= 2 * (1 + backend.MOST_KINDS)
    assert len(reports) - len(of_convolutions) <= 4


@pytest.mark.parametrize("first_is_fake", [False, True])
def test_what_cannot_be_prepared_is_no_kind(first_is_fake, monkeypatch):
    """Memory that was short once, or fake tensors, say nothing of later sizes."""
    prepared = []

    def prepare_or_not(*arguments):
        prepared.append(arguments)
        if len(prepared) == 1:
            raise torch.OutOfMemoryError("there was none")
        return make(*arguments)

    make = backend.Prepared
    monkeypatch.setattr(backend, "Prepared", prepare_or_not)
    torch.compiler.reset()
    convolution = nn.Conv2d(3, 4, 3).eval()
    fast = torch.compile(convolution, backend=ct.compile_graph, dynamic=True, options={"inductor": False})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if first_is_fake:
            with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
                fast(torch.randn(2, 3, 6, 6))
            prepared.append(())
        for count in (2, 3, 4):
            x = torch.randn(count, 3, 7, 7)
            torch.testing.assert_close(fast(x), convolution(x), rtol=1e-4, atol=1e-4)
    assert len(prepared) == (4 if first_is_fake else 3)


def test_sizes_that_inductor_does_not_compile_for_are_left_to_aten(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("no code for these")

    monkeypatch.setattr(backend, "for_any_sizes", lambda function, options: fails)
    torch.compiler.reset()
    fast = torch.compile(lambda x: x.sin() * 2, backend=ct.compile_graph, dynamic=True)
    with torch.no_grad():
        near = {n: fast(torch.full((n, 3), 0.5)) for n in (4,)}
        with pytest.warns(UserWarning, match="leaves a graph to aten, for sizes that change"):
            near[5] = fast(torch.full((5, 3), 0.5))
        near[6] = fast(torch.full((6, 3), 0.5))
    for n, found in near.items():
        torch.testing.assert_close(found, torch.full((n, 3), 0.5).sin() * 2)


def test_parts_of_a_model_are_prepared_for_a_few_sizes():
    model = Detector().eval()
    with pytest.warns(UserWarning, match="its parts are optimized"):
        fast = ct.optimize(model, images(1), inductor=False)
        for count in COUNTS:
            x = images(count)
            with torch.no_grad():
                for made, own in zip(fast(x), model(x), strict=True):
                    torch.testing.assert_close(made, own, rtol=1e-4, atol=1e-4)
    assert [row.layer for row in fast.report].count("head") <= prepare.MOST_KINDS
