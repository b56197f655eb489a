"""What a model does besides computing results: state that it registers, hooks, memory that others read, transforms."""

import copy
import warnings

import pytest
import torch
from nearness import near
from torch import nn

import convgen.torch
from convgen.runtime.errors import WrongArguments
from convgen.torch.asked import of_convolution

pytestmark = [pytest.mark.costly, pytest.mark.filterwarnings("ignore")]


def fast(model, x, **options):
    return convgen.torch.optimize(model.eval(), x, **{"inductor": False, **options})


def image(seed: int = 0, largest: float = 1.0):
    return largest * torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def same_calls(model, calls: int = 3, largest: float = 1.0) -> convgen.torch.Optimized:
    """An optimized model that gives what a copy of it gives, call by call."""
    own = copy.deepcopy(model.eval())
    ready = fast(model, image())
    with torch.no_grad():
        for seed in range(calls):
            near(ready(image(seed, largest)), own(image(seed, largest)))
    return ready


# ---- state ----------------------------------------------------------------------------------------


class Registered(nn.Module):
    """What a call registers for the next one."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.how = nn.Conv2d(3, 3, 1), how
        if how == "parameter":
            self.kept = nn.Parameter(torch.ones(1))
        else:
            self.register_buffer("kept", None if how == "none" else torch.ones(1))

    def forward(self, x):
        y = self.conv(x)
        mean = y.mean().reshape(1)
        before = mean if self.kept is None else self.kept
        if self.how == "parameter":
            self.kept = nn.Parameter(mean)
        elif self.how == "buffers":
            self._buffers["kept"] = mean
        elif self.how == "register":
            self.register_buffer("kept", mean)
        elif self.kept is None or self.how == "buffer":
            self.kept = mean
        return y * before


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("how", ["buffer", "parameter", "buffers", "register", "none"])
def test_what_a_call_registers_is_there_at_the_next(how, within):
    model = Registered(how)
    same_calls(nn.Sequential(model, nn.ReLU()) if within else model)


class Window(nn.Module):
    """Results depend on sixteen earlier calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.means = nn.Conv2d(3, 4, 3), []

    def forward(self, x):
        self.means.append(x.mean())
        self.means = self.means[-16:]
        y = self.conv(x)
        return y - torch.stack(self.means).mean() if len(self.means) == 16 else y


class Counts(nn.Module):
    """A ReLU drops what is counted, of small arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.calls = nn.Conv2d(3, 4, 3), 0

    def forward(self, x):
        self.calls += 1
        return torch.relu(self.conv(x) - self.calls)


@pytest.mark.parametrize("model", [Window(), Counts()], ids=["window", "count"])
def test_what_many_calls_leave_is_there(model):
    same_calls(model, calls=20, largest=5.0)


class Keeps(nn.Module):
    """Attributes that no later call reads, and one that the first call makes for all."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last, self.grid = nn.Conv2d(3, 4, 3), None, None

    def forward(self, x):
        if self.grid is None:
            self.grid = torch.arange(6.0)
        self.last = self.conv(x)
        return self.last.relu() + self.grid


def test_what_no_call_reads_keeps_a_model_whole():
    ready = same_calls(Keeps())
    assert ready.report.notes[0] == "its forward sets attributes, which stay as they were: last, grid"


class Halves(nn.Conv2d):
    def forward(self, x):
        self.weight.data.mul_(0.5)
        return super().forward(x)


@pytest.mark.parametrize("sets", [False, True])
def test_weights_that_forward_writes_are_written_by_calls_alone(sets):
    class Sets(Halves):
        def forward(self, x):
            self.last = x
            return super().forward(x)

    model = nn.Sequential((Sets if sets else Halves)(3, 4, 3))
    before = model[0].weight.detach().clone()
    fast(model, image())
    assert torch.equal(model[0].weight, before)


# ---- parts ----------------------------------------------------------------------------------------


class Marked(nn.Conv2d):
    """Whose class hooks may ask for."""


class InParts(nn.Module):
    """Cannot be traced as a whole: it branches on values."""

    def __init__(self, part=None) -> None:
        super().__init__()
        self.part, self.head = part or Marked(3, 3, 1), nn.Conv2d(3, 3, 1)

    def forward(self, x):
        y = self.part(x)
        return self.head(y * 2 if float(y.sum()) > 0 else y - 1)


def test_hooks_of_all_modules_are_called_once_for_a_part():
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, given, result: result * 2 if type(module) is Marked else None
    )
    try:
        same_calls(InParts())
    finally:
        handle.remove()


def test_a_hook_that_a_part_gets_later_is_called_once():
    model = InParts()
    ready = fast(model, image())
    model.part.register_forward_hook(lambda module, given, result: result * 2)
    with torch.no_grad():
        for seed in range(2):
            near(ready(image(seed)), model(image(seed)))


def test_observers_of_torch_see_each_call_once():
    quantization = torch.ao.quantization
    model = InParts(nn.Conv2d(3, 3, 1)).eval()
    observer = quantization.MovingAverageMinMaxObserver.with_args(averaging_constant=0.1)
    model.qconfig = quantization.QConfig(observer, quantization.default_weight_observer)
    model = quantization.prepare(model).eval()
    own = copy.deepcopy(model)
    ready = fast(model, image())
    with torch.no_grad():
        for seed in range(5):
            ready(image(seed, seed + 1.0))
            own(image(seed, seed + 1.0))
    near(model.part.activation_post_process.max_val, own.part.activation_post_process.max_val)


class GivesView(nn.Module):
    def __init__(self, view) -> None:
        super().__init__()
        self.conv, self.view = nn.Conv2d(3, 3, 3, padding=1), view

    def forward(self, x):
        return self.conv(x), self.view(x)


@pytest.mark.parametrize(
    "view", [lambda x: x[:, :2], lambda x: x.flatten(1), lambda x: x.detach()], ids=["slice", "flat", "detached"]
)
def test_a_model_may_write_to_views_that_its_parts_give(view):
    class Writes(InParts):
        def forward(self, x):
            x = x * 2 if float(x.sum()) > 0 else x - 1
            y, seen = self.part(x)
            seen.zero_()
            return self.head(y) + x

    same_calls(Writes(GivesView(view)))


def test_warnings_that_are_errors_are_raised_as_they_are():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="its parts are optimized"):
            fast(InParts(), image())


# ---- memory ---------------------------------------------------------------------------------------


@torch.library.custom_op("convgen_tests::in_memory", mutates_args=())
def in_memory(x: torch.Tensor) -> torch.Tensor:
    """The elements as they lie, as a kernel of the user's reads them."""
    return torch.as_strided(x, (x.numel(),), (1,)).clone()


@in_memory.register_fake
def _(x):
    return x.new_empty(x.numel())


class ReadsMemory(nn.Module):
    def __init__(self, of) -> None:
        super().__init__()
        self.conv, self.of = nn.Conv2d(3, 4, 3), of

    def forward(self, x):
        y = self.conv(x)
        return in_memory(self.of(x, y)), y.relu()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "of", [lambda x, y: x, lambda x, y: y, lambda x, y: y.contiguous()], ids=["given", "result", "contiguous"]
)
def test_operators_of_others_read_what_the_model_gives_them(of, last, compiled):
    model, x = ReadsMemory(of).eval(), image()
    x = x.to(memory_format=torch.channels_last) if last else x
    if compiled:
        torch.compiler.reset()
        ready = torch.compile(model, backend=convgen.torch.compile_graph, options={"inductor": False})
    else:
        ready = fast(model, x)
    with torch.no_grad():
        near(ready(x), model(x))


def test_branches_of_torch_cond_may_convolve():
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: self.conv(x), lambda x: self.conv(x) * 2, (x,))

    model = Branches().eval()
    ready = fast(model, image())
    assert not any("traced" in note for note in ready.report.notes)
    for x in (image(), -image()):
        near(ready(x), model(x).detach())


@pytest.mark.parametrize("shape", [(2, 3, 1, 8), (2, 3, 8, 1), (2, 3, 1, 1), (2, 3, 1, 1, 8), (2, 3, 1, 8, 8)])
def test_images_of_one_row_are_flattened(shape):
    convolution = nn.Conv2d if len(shape) == 4 else nn.Conv3d
    model, x = nn.Sequential(convolution(3, 3, 3, padding=1), nn.Flatten()).eval(), torch.randn(shape)
    ready = fast(model, x, inductor=True)
    assert not any("traced" in note for note in ready.report.notes)
    near(ready(x), model(x).detach())


# ---- transforms and contexts ----------------------------------------------------------------------


def test_torch_func_takes_the_models_derivatives():
    model, x = nn.Conv2d(3, 4, 3).eval(), image()
    ready, weights = fast(model, x), dict(model.named_parameters())

    def loss(module):
        return lambda weights: torch.func.functional_call(module, weights, (x,)).square().sum()

    near(torch.func.grad(loss(ready))(weights), torch.func.grad(loss(model))(weights))


def test_the_default_device_is_that_of_the_call():
    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x), torch.zeros(2)

    x = image()
    ready = fast(Makes(), x)
    with torch.device("meta"), torch.no_grad():
        assert ready(x)[1].device.type == "meta"
    assert ready(x)[1].device.type == "cpu"


def test_parametrizations_cache_no_fake_weights():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))).eval()
    with nn.utils.parametrize.cached(), torch.no_grad():
        ready = fast(model, image())
        assert type(model(image())) is torch.Tensor
        near(ready(image()), model(image()))


# ---- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kwargs": [1]}, "kwargs is of type list: expected a dict"),
        ({"kwargs": torch.zeros(2)}, "kwargs is of type Tensor: expected a dict"),
        ({"kwargs": {1: torch.zeros(2)}}, "kwargs has the key 1: expected names of the model's arguments$"),
        ({"options": torch.zeros(2)}, "options is of type Tensor: expected a dict of Inductor's options"),
        ({"options": {"max_autotune": "maybe"}}, "Inductor's option 'max_autotune' is 'maybe': expected bool"),
    ],
)
def test_options_of_another_kind_are_refused(options, said):
    with pytest.raises(WrongArguments, match=said):
        fast(nn.Conv2d(3, 4, 3), image(), **options)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_bias_of_another_size_is_left_to_aten(transposed):
    x, w = image(), torch.randn(3, 4, 3, 3) if transposed else torch.randn(4, 3, 3, 3)
    terms = ([1, 1], [0, 0], [1, 1], transposed, [0, 0], 1)
    assert of_convolution(x, w, torch.ones(4), *terms) is not None
    assert of_convolution(x, w, torch.ones(1), *terms) is None
