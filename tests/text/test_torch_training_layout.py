"""Training of networks whose channels are not last: within a graph of convgen's they are, and nobody sees it."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.torch.network import training  # noqa: E402
from convgen.torch.network.training_layout import with_channels_last  # noqa: E402

pytestmark = pytest.mark.costly
nn, TF = torch.nn, torch.nn.functional
torch.set_num_threads(1)


class Block(nn.Module):
    """Its results are a number of each image, and tensors with channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.up, self.head = nn.ConvTranspose2d(8, 4, 2, 2), nn.Linear(8 * 36, 5)

    def forward(self, x):
        y = self.norm(self.first(x)).relu()
        y = self.second(y) + y
        return self.head(y.flatten(1)), self.up(y), y


class Volumes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.utils.parametrizations.weight_norm(nn.Conv3d(2, 4, 3)), nn.Conv3d(4, 4, 3)

    def forward(self, x):
        return (self.second(self.first(x).relu()),)


class Views(nn.Module):
    """What comes after a convolution takes channels first alone."""

    def __init__(self, how) -> None:
        super().__init__()
        self.first, self.how = nn.Conv2d(3, 8, 3), how

    def forward(self, x):
        return (self.how(self.first(x)) * 2,)


@pytest.fixture
def made(monkeypatch):
    """The graphs with channels last, or None, of those that were compiled."""
    found = []

    def remembered(graph_module, inputs):
        found.append(with_channels_last(graph_module, inputs))
        return found[-1]

    monkeypatch.setattr(training, "_is_on_gpu", lambda inputs: True)
    monkeypatch.setattr(training, "with_channels_last", remembered)
    torch.compiler.reset()
    return found


def compare(model, batches, shape, inductor=False):
    """Steps of the model beside its own: values, strides, gradients, what BatchNorm keeps."""
    torch.manual_seed(0)
    own = copy.deepcopy(model)
    compiled = torch.compile(model, backend=ct.compile_graph, options={"inductor": inductor})
    for count in batches:
        x = torch.randn(count, *shape)
        seen = []
        for net, function in ((model, compiled), (own, own)):
            net.zero_grad()
            given = x.clone().requires_grad_()
            results = function(given)
            sum(result.reshape(count, -1).sin().sum() for result in results).backward()
            seen.append([*results, given.grad, *[p.grad for p in net.parameters()], *net.buffers()])
        for found, right in zip(*seen, strict=True):
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
            assert found.is_contiguous() == right.is_contiguous()
        for found, right in zip(seen[0][: len(results)], results, strict=True):
            assert found.stride() == right.stride()


@pytest.mark.parametrize(("inductor", "batches", "graphs"), [(False, (2, 2, 3, 2), 3), (True, (2,), 1)])
def test_channels_are_last_within(inductor, batches, graphs, made):
    """For 2 images, and for 3 and 2 where Dynamo has symbols."""
    compare(Block(), batches, (3, 8, 8), inductor)
    assert len(made) == graphs and all(made)
    assert not any("channels" in row.why_not for report in list(ct.reports())[-2 * graphs :] for row in report)


def test_volumes_and_filters_that_are_computed(made):
    compare(Volumes(), (2,), (2, 6, 6, 6))
    assert all(made)


def write(y, view):
    """What is written to a view is read where it is of."""
    view(y).clamp_(min=0)
    return y


def within_autocast(y):
    with torch.autocast("cpu", torch.bfloat16):
        return y.view(y.shape[0], -1) @ y.new_ones(y[0].numel(), 2)


def by_batch(y):
    return torch.func.vmap(lambda each: each.view(-1) * 2)(y)


def strided(y):
    return y.as_strided((2, 8, 36), (288, 36, 1))


def checkpointed(y):
    return torch.utils.checkpoint.checkpoint(strided, y, use_reentrant=False)


@torch.library.custom_op("convgen_tests::rows", mutates_args=())
def rows(y: torch.Tensor) -> torch.Tensor:
    """As kernels of extensions read memory, without a look at strides."""
    return torch.as_strided(y.detach(), (2, 8, 36), (288, 36, 1)).clone()


@rows.register_fake
def _(y):
    return y.new_empty(2, 8, 36)


rows.register_autograd(lambda ctx, grad: grad.reshape(2, 8, 6, 6))
FIRST_ALONE = {
    "view": lambda y: y.view(y.shape[0], -1),
    "as_strided, a method": strided,
    "as_strided, a function": lambda y: torch.as_strided(y, (2, 8, 36), (288, 36, 1)),
    "as_strided in a checkpoint": checkpointed,
    "a write through flatten": lambda y: write(y, lambda y: y.flatten(1)),
    "a write through reshape": lambda y: write(y, lambda y: y.reshape(-1)[::3]),
    "a write through contiguous": lambda y: write(y, lambda y: y.contiguous()),
    "a view within autocast": within_autocast,
    "a view within vmap": by_batch,
    "roll": lambda y: y.roll(1, 2),
    "an operator of others": lambda y: torch.ops.convgen_tests.rows.default(y),
    "a packet of others": lambda y: torch.ops.convgen_tests.rows(y),
}


@pytest.mark.parametrize("how", FIRST_ALONE)
def test_graphs_that_take_channels_first_alone_stay_as_they_are(how, made):
    compare(Views(FIRST_ALONE[how]), (2,), (3, 8, 8))
    assert made == [None]
    assert {"channels are not last" in row.why_not for row in ct.reports()[-1]} == {True}
    assert not torch.is_autocast_enabled("cpu")


def test_results_that_share_memory_go_on_to_do_so(made):
    class Both(Views):
        def forward(self, x):
            y = self.first(x)
            return y, y.reshape(len(y), -1)

    compiled = torch.compile(Both(None), backend=ct.compile_graph, options={"inductor": False})
    one, other = compiled(torch.randn(2, 3, 8, 8))
    assert made == [None] and one.data_ptr() == other.data_ptr()


@pytest.mark.parametrize(
    "how", [lambda y: TF.adaptive_avg_pool2d(y, 1), lambda y: y[:, :1], lambda y: TF.relu(y, inplace=True)]
)
def test_strides_are_the_models(how, made):
    compare(Views(how), (2,), (3, 8, 8))
    assert all(made)


def test_graphs_with_channels_last_stay_as_they_are(made):
    model = Block().to(memory_format=torch.channels_last)
    torch.compile(model, backend=ct.compile_graph, options={"inductor": False})(torch.randn(2, 3, 8, 8))
    assert made == [None]
