"""Random functions of layers, views and elements, on a CPU: what optimize makes of them gives the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("torch_draws")
nn, TF = torch.nn, torch.nn.functional
#: Of every axis, so that all views and layers go with one another.
SIZE = 8

layers = {
    "linear": lambda rank: nn.Linear(SIZE, SIZE),
    "linear without bias": lambda rank: nn.Linear(SIZE, SIZE, bias=False),
    "convolution": lambda rank: (nn.Conv1d if rank == 3 else nn.Conv2d)(SIZE, SIZE, 3, padding="same"),
    "norm": lambda rank: nn.LayerNorm(SIZE),
}
functions = {
    "relu": torch.relu,
    "gelu": TF.gelu,
    "written out": lambda t: 0.5 * t * (1 + torch.tanh(t)),
    "doubled half": lambda t: torch.cat([t.narrow(0, 0, 4), 2 * t.narrow(0, 4, 4)]),
    "packed": lambda t: t.contiguous(),
    "flattened": lambda t: (t.flatten(-2) - torch.arange(SIZE**2)).relu().unflatten(-1, (SIZE, SIZE)),
    "transposed, not reshaped": lambda t: t.transpose(-1, -2).reshape(t.shape),
    "transposed, not seen otherwise": lambda t: t.transpose(1, 2).squeeze(0).unsqueeze(-1).squeeze(-1),
    "of two views": lambda t: t.flatten(-2).unflatten(-1, (SIZE, SIZE)).contiguous(),
    "with an axis more": lambda t: (t.unsqueeze(-2) * torch.arange(SIZE)).tanh().squeeze(-2),
}
places = st.integers(1, 3)  # how many values back
steps = st.one_of(
    st.tuples(st.sampled_from([*layers, *functions, "sum", "product"]), places, places),
    st.tuples(st.just("permuted"), places, st.randoms(use_true_random=False)),
)


class Program(nn.Module):
    """Each step makes a value of those before it; the last three are the results."""

    def __init__(self, rank: int, drawn: list) -> None:
        super().__init__()
        self.steps = []
        for kind, back, other in drawn:
            if kind == "permuted":
                order = list(range(rank))
                other.shuffle(order)
                other = tuple(axis - rank * (axis % 2) for axis in order)  # counted from either end
            self.steps.append((kind, back, other))
        self.layers = nn.ModuleList(layers.get(kind, lambda _: nn.Identity())(rank) for kind, *_ in drawn)

    def forward(self, x):
        values = [x]
        for (kind, back, other), layer in zip(self.steps, self.layers, strict=True):
            value = values[-min(back, len(values))]
            if kind == "permuted":
                made = value.permute(other)
            elif kind in functions:
                made = functions[kind](value)
            elif kind in layers:
                made = layer(value)
            else:
                second = values[-min(other, len(values))]
                made = value + second if kind == "sum" else value * torch.tanh(second)
            values.append(made)
        return tuple(values[1:][-3:])


@settings(max_examples=8, deadline=None)
@given(rank=st.sampled_from([3, 4]), drawn=st.lists(steps, min_size=4, max_size=12))
def test_programs_give_the_same_results(rank, drawn):
    model, x = Program(rank, drawn).eval(), torch.randn((SIZE,) * rank)
    with torch.no_grad():
        for found, wanted in zip(ct.optimize(model, x, inductor=False)(x), model(x), strict=True):
            assert found.shape == wanted.shape
            assert (found - wanted).norm() <= 1e-4 * wanted.norm() + 1e-6


def own(function: Callable[..., Any], *layers: nn.Module, numbers: torch.dtype = torch.float32) -> nn.Module:
    """A model of a function of layers and a tensor."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(layers).to(numbers)

        def forward(self, *given):
            return function(*self.layers, *given)

    return Model().eval()


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda layer, x: torch.relu(layer(x).flatten(1, 2).unflatten(1, (5, 6)).permute(0, 3, 1, 2)), (2, 5, 6, 8)),
        (lambda layer, x: torch.relu(layer(x).squeeze(1).squeeze(1).permute(0, -1, 1, -2)), (2, 5, 6, 8)),
        (lambda layer, x: layer(x).permute(0, -2, -1, -3) * layer.bias.view(4, 1), (4, 4, 8, 8)),
        (lambda layer, x: layer(x).transpose(1, 2).reshape(2, -1, 4) * layer.bias, (2, 4, 8)),
        (lambda layer, x: TF.linear(x, layer.weight, layer.bias[:1]), (2, 5, 8)),
        (lambda layer, x: torch.relu(layer(x)), (2, 0, 8)),
        (lambda layer, x: torch.relu(layer(x)), (0, 8)),
    ],
)
def test_views_behind_linear_layers(function, shape: tuple[int, ...]) -> None:
    model, x = own(function, nn.Linear(8, 4)), torch.randn(shape)
    fast = ct.optimize(model, x, inductor=False)
    torch.testing.assert_close(fast(x), model(x).detach())
    assert not any("cannot be traced" in note for note in fast.report.notes)


OTHER_LAYOUTS = {
    "sparse_csr": torch.Tensor.to_sparse_csr,
    "sparse_coo": torch.Tensor.to_sparse,
    "nested": lambda x: torch.nested.nested_tensor([x, x[:2]]),
}


@pytest.mark.filterwarnings("ignore:.*(convgen.torch.optimize|beta state|prototype)")
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
def test_tensors_of_other_layouts_are_the_models_own_business(layout: str, first: bool) -> None:
    """Whether the example is one or a later call's argument."""
    model = own(lambda layer, a: layer(a if a.is_nested else a.to_dense()), nn.Linear(4, 4))
    x = torch.eye(4)
    given = OTHER_LAYOUTS[layout](x)
    fast = ct.optimize(model, given if first else x, inductor=False)
    with torch.no_grad():
        for found, expected in zip(fast(given).unbind(), model(given).unbind(), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("numbers", [torch.complex64, torch.complex128, torch.int64])
def test_sums_of_layers_of_other_numbers_stay(numbers: torch.dtype) -> None:
    """Which merged weights would not have."""
    a, b, c, d = (torch.randn(4, 8), torch.randn(4, 8), torch.randn(4, 8, 3, 3), torch.randn(4, 8, 1, 1))
    a, b, c, d = (9 * 2**22 * t if numbers == torch.int64 else t.to(torch.complex128) * (1 + 2j) for t in (a, b, c, d))
    a, b, c, d = (t.to(numbers) for t in (a, b, c, d))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in (("a", a), ("b", b), ("c", c), ("d", d)):
                self.register_buffer(name, value)

        def forward(self, x, y):
            images = TF.conv2d(y, self.c, None, 1, 1) + TF.conv2d(y, self.d)
            return TF.linear(x, self.a) + TF.linear(x, self.b), images

    x, y = torch.randint(-9, 9, (3, 8)).to(numbers), torch.randint(-9, 9, (1, 8, 5, 5)).to(numbers)
    model = Model().eval()
    fast = ct.optimize(model, (x, y), inductor=False)
    torch.testing.assert_close(fast(x, y), model(x, y), rtol=1e-4, atol=1e-3)
    assert not any("merged" in note for note in fast.report.notes)
