"""An optimized model in the place of its model: attributes, checkpoints, tracers, subclasses of tensors."""

import copy
import logging
import pickle

import pytest
import torch
from torch import nn

import convgen.torch

pytestmark = [pytest.mark.costly, pytest.mark.filterwarnings("ignore")]


def fast(model, x) -> convgen.torch.Optimized:
    return convgen.torch.optimize(model.eval(), x, inductor=False)


def image(seed: int = 0):
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


class Versioned(nn.Module):
    """Its first version kept the matrix transposed."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.w, self.conv = nn.Parameter(torch.randn(3, 3)), nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.conv(torch.einsum("nchw,cd->ndhw", x, self.w))

    def _load_from_state_dict(self, state, prefix, metadata, *more):
        if metadata.get("version", 1) < 2:
            state[prefix + "w"] = state[prefix + "w"].T
        super()._load_from_state_dict(state, prefix, metadata, *more)


class Prefixed(nn.Sequential):
    """Saves names as DataParallel does, and loads these."""

    def state_dict(self, *args, **kwargs):
        return {f"module.{name}": value for name, value in super().state_dict(*args, **kwargs).items()}

    def load_state_dict(self, state, *args, **kwargs):
        return super().load_state_dict({n.removeprefix("module."): v for n, v in state.items()}, *args, **kwargs)


class Headed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head, self.threshold, self.options = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1), 0.0, "its own"

    def forward(self, x):
        return (self.head(self.conv(x)) > self.threshold).float()


def test_checkpoints_keep_the_versions_of_modules():
    model, other = Versioned(), Versioned()
    ready = fast(model, image())
    with torch.no_grad():
        expected = other(image())
        for load in (ready.load_state_dict, model.load_state_dict):
            load(copy.deepcopy(other.state_dict()))
            torch.testing.assert_close(ready(image()), expected)
        around = nn.Sequential(nn.Identity(), nn.Sequential(ready))
        around.load_state_dict(copy.deepcopy(around.state_dict()))
        torch.testing.assert_close(ready(image()), expected)
        named = {name: value.detach().clone() for name, value in ready.named_parameters()}
        ready.load_state_dict(named | {"w": named["w"].T})  # no versions: as of the first
        torch.testing.assert_close(ready(image()), expected)


def test_a_model_loads_as_it_saves():
    model = Prefixed(nn.Conv2d(3, 4, 3))
    ready = fast(model, image())
    assert str(ready.load_state_dict(ready.state_dict())) == str(model.load_state_dict(model.state_dict()))


def test_what_is_missing_is_named_as_it_is_saved():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 1))
    ready, some = fast(model, image()), {"0.weight": model[0].weight, "0.bias": model[0].bias, "head.weight": image()}
    assert ready.load_state_dict(dict(some), strict=False) == model.load_state_dict(dict(some), strict=False)
    within = {f"1.{name}": value for name, value in some.items()}
    plain, around = (nn.Sequential(nn.Identity(), part) for part in (model, ready))
    assert around.load_state_dict(dict(within), strict=False) == plain.load_state_dict(dict(within), strict=False)
    again = pickle.loads(pickle.dumps(ready))
    assert again.load_state_dict(dict(some), strict=False) == model.load_state_dict(dict(some), strict=False)


class Wrapped(nn.Module):
    """Has a part of the name that others give to the whole, a weight of its own, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.scale = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.Parameter(torch.ones(4, 1, 1))
        self.register_buffer("shift", torch.zeros(4, 1, 1), persistent=False)

    def forward(self, x):
        return self.model(x) * self.scale + self.shift


def test_weights_and_modules_are_named_as_they_are_saved():
    model = Wrapped()
    ready = fast(model, image())
    assert ready.model is model.model and ready.get_submodule("model.0") is model.model[0]
    for around, plain in ((ready, model), (nn.ModuleDict({"net": ready}), nn.ModuleDict({"net": model}))):
        for names in ("named_parameters", "named_buffers"):
            found, expected = dict(getattr(around, names)()), dict(getattr(plain, names)())
            assert list(found) == list(expected) and all(found[name] is expected[name] for name in expected)
        assert dict(around.named_modules()).keys() == dict(plain.named_modules()).keys()
        assert all(around.get_parameter(name) is weight for name, weight in plain.named_parameters())
        assert around.get_buffer("net.shift" if plain is not model else "shift") is model.shift
        around.load_state_dict(dict(around.named_parameters()), strict=False)
    assert {model, ready} <= set(ready.modules())


def test_weights_may_be_given_to_a_call():
    model, other = Wrapped(), Wrapped()
    ready, weights = fast(model, image()), {name: w.detach() for name, w in other.named_parameters()}
    with torch.no_grad():
        before = ready(image())
        found = torch.func.functional_call(ready, weights, image())
        torch.testing.assert_close(found, torch.func.functional_call(model, weights, image()))
        torch.testing.assert_close(ready(image()), before)


def test_an_optimizer_s_step_is_seen():
    model = Wrapped()
    ready = fast(model, image())
    model(image()).square().sum().backward()
    torch.optim.SGD([{"params": [p], "name": name} for name, p in ready.named_parameters()], lr=0.01).step()
    with torch.no_grad():
        torch.testing.assert_close(ready(image()), model(image()))


def test_what_is_registered_is_the_model_s_and_saved():
    model = Wrapped()
    ready = fast(model, image())
    ready.register_buffer("mean", torch.ones(3))
    ready.add_module("head", nn.Conv2d(4, 2, 1))
    ready.register_module("tail", nn.Conv2d(4, 2, 1))
    ready.register_parameter("gain", nn.Parameter(torch.ones(1)))
    ready.bias, ready.last = nn.Parameter(torch.ones(1)), nn.Linear(1, 1)
    names = {"mean", "head.weight", "tail.weight", "gain", "bias", "last.weight"}
    assert names <= ready.state_dict().keys() == model.state_dict().keys()
    ready.eval()
    with pytest.raises(KeyError, match="already exists"):
        ready.register_buffer("scale", None)
    with torch.no_grad():
        torch.testing.assert_close(ready(image()), model(image()))


def test_attributes_are_set_on_the_model():
    model = Headed()
    ready = fast(model, image())
    ready.head = nn.Conv2d(4, 7, 1).eval()
    assert ready.head is model.head and ready.state_dict()["head.weight"].shape[0] == 7
    assert [name for name, _ in ready.named_parameters() if "head.weight" in name] == ["head.weight"]
    with torch.no_grad():
        torch.testing.assert_close(ready(image()), model(image()))
        ready.threshold = 1e9
        assert model.threshold == 1e9 and not ready(image()).any()
        prepared = ready._prepared
        ready.threshold = 1e9  # what it is: nothing is prepared anew
        assert ready._prepared is prepared
        ready.note = "of its own"  # which the model has not
        assert not hasattr(model, "note") and ready.note == "of its own"
        del ready.head
        assert not hasattr(model, "head") and not hasattr(ready, "head")
    assert model.options == "its own" and ready.options != "its own"


def test_torch_fx_goes_through_an_optimized_model_as_through_its_model():
    block = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()), nn.Conv2d(8, 4, 3))
    ready = fast(block, image())
    before = str(ready.report)
    traced = torch.fx.symbolic_trace(nn.Sequential(ready, nn.Softmax(1)))
    assert sum(node.op == "call_module" for node in traced.graph.nodes) == 4
    assert str(ready.report) == before
    with torch.no_grad():
        torch.testing.assert_close(traced(image()), nn.Sequential(block, nn.Softmax(1))(image()))
        torch.testing.assert_close(ready(image()), block(image()))


class Image(torch.Tensor):
    pass


def test_a_subclass_that_names_what_a_tensor_holds_is_a_tensor():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    ready = fast(model, image().as_subclass(Image))
    assert [row.fused for row in ready.report] == ["add relu"]
    with torch.no_grad():
        for x in (image(1), image(2).as_subclass(Image)):
            torch.testing.assert_close(ready(x).as_subclass(torch.Tensor), model(x).as_subclass(torch.Tensor))
    assert [row.fused for row in ready.report] == ["add relu"]


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_convgen_s_own_layers_are_fused_as_torch_s(mode):
    def made(layer):
        torch.manual_seed(3)
        return nn.Sequential(layer(3, 4, 3, padding=1, padding_mode=mode), nn.BatchNorm2d(4), nn.ReLU()).eval()

    ready, plain = fast(made(convgen.torch.Conv2d), image()), made(nn.Conv2d)
    if mode == "zeros":
        assert [row.fused for row in ready.report] == ["add relu"]
    with torch.no_grad():
        torch.testing.assert_close(ready(image()), plain(image()))


def test_of_code_that_branches_on_data_torch_logs_nothing():
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Sequential(nn.Conv2d(3, 4, 3))

        def forward(self, x):
            return self.conv(x) if x.mean() > 0 else self.conv(-x)

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    log, kept, records = logging.getLogger("torch.fx.experimental.symbolic_shapes"), Kept(), list[logging.LogRecord]()
    log.addHandler(kept)
    try:
        fast(Branches(), image())
    finally:
        log.removeHandler(kept)
    assert not records and not log.filters
