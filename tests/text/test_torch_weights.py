"""Weights of optimized models that come to be others: where none was, tied ones, other strides, hidden modules."""

import copy
import gc
import types
import warnings
import weakref

import pytest
import torch
from torch import nn

import convgen.torch
from convgen.runtime.errors import WrongArguments

pytestmark = [pytest.mark.costly, pytest.mark.filterwarnings("error:convgen")]
parametrize = nn.utils.parametrize
weight_norm = nn.utils.parametrizations.weight_norm


def new(like):
    return nn.Parameter(torch.randn_like(like))


def assigned(module):
    """Other weights, of which no two are one."""
    state = {
        name: torch.rand_like(value) + 0.1 if value.is_floating_point() else value
        for name, value in module.state_dict().items()
    }
    module.load_state_dict(state, assign=True)


class Standardized(nn.Conv2d):
    """Whose filters are computed by views, where they have channels last."""

    def forward(self, x):
        w = self.weight.permute(0, 2, 3, 1)
        rows = w.reshape(len(w), -1)
        rows = rows / rows.norm(dim=1)[:, None]
        return self._conv_forward(x, rows.view(w.shape).permute(0, 3, 1, 2), None)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.bare = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False))
        self.first, self.second = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)
        self.second.weight = self.first.weight
        self.normed, self.standard = weight_norm(nn.Conv2d(4, 4, 1)), Standardized(4, 4, 3)
        self.standard.to(memory_format=torch.channels_last)
        self.blocks = nn.Sequential()
        self.hidden = [nn.Conv2d(4, 4, 1)]
        self.helper = types.SimpleNamespace(more={"last": nn.Sequential(nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2))})
        self.helper.more["last"].eval()

    def forward(self, x):
        y = self.normed(self.second(self.first(self.bare(x))))
        y = self.standard(self.blocks(y))
        return self.helper.more["last"](self.hidden[0](y))


def set_parameter(owner, name):
    def change(model):
        module = model.get_submodule(owner)
        setattr(
            module, name, nn.Parameter(torch.rand(module.weight.shape[0] if module.weight is not None else 4) + 0.5)
        )

    return change


def removed(model):
    parametrize.remove_parametrizations(model.normed, "weight")
    assigned(model.normed)


def parametrized(model):
    weight_norm(model.first).eval()
    model.first.parametrizations.weight.original0.data.mul_(2)


CHANGES = {
    "a bias that there was not": set_parameter("bare.0", "bias"),
    "a scale that there was not": set_parameter("bare.1", "weight"),
    "tied weights that are loaded": assigned,
    "a tied weight that is set": lambda model: setattr(model.second, "weight", new(model.second.weight)),
    "weights that become one": lambda model: setattr(model.normed, "bias", model.first.bias),
    "a parametrization that is removed": removed,
    "a parametrization that is new": parametrized,
    "other strides": lambda model: setattr(model.bare[0].weight, "data", model.bare[0].weight.mT.data),
    "other strides of what is viewed": lambda model: setattr(model.standard.weight, "data", torch.randn(4, 4, 3, 3)),
    "a module in another's place": lambda model: setattr(model, "first", nn.Conv2d(4, 4, 3).eval()),
    "a further module": lambda model: model.blocks.append(nn.Sigmoid().eval()),
    "hidden weights that are written": lambda model: model.hidden[0].weight.mul_(2),
    "hidden weights that are loaded": lambda model: assigned(model.hidden[0]),
    "hidden statistics": lambda model: model.helper.more["last"][1].running_mean.add_(1),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_weights_that_come_to_be_others_are_noticed(change):
    model, x = Network().eval(), torch.randn(2, 3, 12, 12)
    other = torch.randn(2, 3, 10, 12)
    made = convgen.torch.optimize(model, x, inductor=False)
    made(other)
    before = model(x)
    CHANGES[change](model)
    assert not torch.allclose(model(x), before)
    for given in (x, other, torch.randn(1, 3, 9, 9), x):
        torch.testing.assert_close(made(given), model(given), rtol=1e-4, atol=1e-4)
    structure = made._structure
    for parameter in model.parameters():  # and then, too
        parameter.mul_(1.5)
    torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)
    assert made._structure is structure


@pytest.mark.parametrize("whole", [True, False])
@torch.no_grad()
def test_modules_in_the_place_of_others_are_for_inference_too(whole):
    class Branches(nn.Sequential):
        def forward(self, x):
            y = super().forward(x)
            return y if whole or y.sum() > -1e9 else -y

    model, x = Branches(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout()), nn.ReLU()).eval(), torch.randn(2, 3, 8, 8)
    with pytest.warns(UserWarning) if not whole else pytest.MonkeyPatch.context():
        made = convgen.torch.optimize(model, x, inductor=False)
        made(x)
        model[0] = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout())
        for _ in range(2):
            with pytest.raises(WrongArguments, match="module '0' of the model is in training mode"):
                made(x)
        model.eval()
        torch.testing.assert_close(made(x), model(x))


@pytest.mark.parametrize("compiled", [False, True])
@torch.no_grad()
def test_weights_may_begin_anywhere(compiled):
    """As views of a flat buffer do."""
    model, x = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.LayerNorm(128)).eval(), torch.randn(2, 8, 6, 6)
    torch.compiler.reset()
    plain = {"inductor": False}
    if compiled:
        made = torch.compile(model, backend=convgen.torch.compile_graph, options=plain)
    else:
        made = convgen.torch.optimize(model, x, **plain)
    aligned, odd = torch.randn(128), torch.randn(129)[1:]
    for weight in (aligned, odd, aligned, odd):
        model[2].weight.data = weight
        torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_what_no_call_looks_at_is_there_after_refresh():
    model, x = Network().eval(), torch.randn(2, 3, 12, 12)
    made = convgen.torch.optimize(model, x, inductor=False)
    for refresh in (made.refresh, convgen.torch.refresh):
        model.hidden[0] = nn.Conv2d(4, 4, 1)
        refresh()
        torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_hidden_modules_are_named_and_shared(own_garbage):
    model, x = Network().eval(), torch.randn(2, 3, 12, 12)
    made = convgen.torch.optimize(model, x, inductor=False)
    layers = [row.layer for row in made.report]
    assert layers[-2:] == ["hidden.0", "helper.more.last.0"]
    weight = weakref.ref(model.hidden[0].weight)
    made(x)
    model.hidden[0].weight = new(model.hidden[0].weight)
    made(x)
    gc.collect()
    assert weight() is None


@torch.no_grad()
def test_modules_of_what_cannot_be_traced_may_change():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential()), nn.ReLU()

        def forward(self, x):
            y = self.head(self.body(x))
            return y if y.sum() > -1e9 else -y

    model, x = Branches().eval(), torch.randn(2, 3, 8, 8)
    with pytest.warns(UserWarning, match="branches on values"):
        made = convgen.torch.optimize(model, x, inductor=False)
        made(x)
        changes = [
            lambda: setattr(model, "head", nn.Tanh()),
            lambda: setattr(model, "body", nn.Sequential(nn.Conv2d(3, 4, 5), nn.Sequential())),
            lambda: model.body[1].append(nn.Sigmoid()),
            lambda: setattr(model.body[0], "bias", None),
        ]
        for change in changes:
            change()
            model.eval()
            torch.testing.assert_close(made(x), model(x))


@pytest.mark.parametrize("whole", [True, False])
@torch.no_grad()
def test_weights_of_optimized_parts_are_noticed(whole):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

        def forward(self, x):
            y = self.body(x)
            return y if whole or y.sum() > -1e9 else -y

    part, x = Part().eval(), torch.randn(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        optimized = convgen.torch.optimize(part, x, inductor=False)
        optimized(x)
        model = nn.Sequential(optimized, nn.Conv2d(4, 4, 1)).eval()
        made = convgen.torch.optimize(model, x, inductor=False)
        for layer in (part.body[0], model[1]):
            for _ in range(2):
                torch.testing.assert_close(made(x), model(x))
                layer.weight = new(layer.weight)
            torch.testing.assert_close(made(x), model(x))


class OfUnitVariance(nn.Conv2d):
    """Its filters have mean 0 and the variance that keeps that of the input, as in networks without normalization."""

    def forward(self, x):
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        scale = torch.rsqrt((variance * self.weight[0].numel()).clamp(min=1e-4))
        return self._conv_forward(x, self.weight * scale - mean * scale, None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.usefixtures("torch_draws")
def test_weights_that_are_computed_are_rounded_once(dtype):
    model = nn.Sequential(OfUnitVariance(16, 16, 3), nn.ReLU(), weight_norm(nn.Conv2d(16, 16, 3))).eval()
    with torch.no_grad():
        model[0].weight.mul_(0.02).add_(0.01)  # a variance that float16 has as a subnormal number
    model, x = model.to(dtype), torch.randn(2, 16, 12, 12).to(dtype)
    exact = copy.deepcopy(model).double()(x.double())
    models, ours = model(x), convgen.torch.optimize(model, x, inductor=False)(x)
    assert ours.dtype is dtype
    error, allowed = ((y.double() - exact).norm() for y in (ours, models))
    assert error < allowed / 4


@pytest.mark.parametrize(
    "made",
    [
        lambda w: (w * 0.3)[:, ::2],  # with gaps
        lambda w: (w[:, :1] * 0.3).expand(-1, 4, -1, -1),
        lambda w: (w * 0.3)[:0],
        lambda w: (w * 0.3).view(torch.int16).view(torch.float16),  # other types' bits
        lambda w: (w.mean((2, 3)) @ w.mean((2, 3)).T)[..., None, None],
        lambda w: w.to(torch.float16).float().mul(0.3).half().transpose(0, 1),
    ],
)
@pytest.mark.usefixtures("torch_draws")
def test_what_is_computed_of_weights_lies_as_in_the_model(made):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4, 3, 3).half())

        def forward(self, x):
            return x + made(self.w).sum(), made(self.w) + 0  # what is read, and a result

    model = Model().eval()
    fast = convgen.torch.optimize(model, torch.ones(()).half(), inductor=False)
    for ours, models in zip(fast(torch.ones(()).half()), model(torch.ones(()).half()), strict=True):
        assert ours.dtype is models.dtype and ours.stride() == models.stride()
        torch.testing.assert_close(ours, models, atol=1e-2, rtol=1e-2)
