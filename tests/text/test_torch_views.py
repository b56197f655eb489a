"""Random functions of layers, views and elements, on a CPU: what optimize makes of them gives the same results."""

from __future__ import annotations

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
                other = tuple(order)
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
