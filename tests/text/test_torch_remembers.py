"""What a model holds and changes: state in any place, modules in any order, and changes while it is prepared."""

import copy
import threading
import warnings
from dataclasses import dataclass

import pytest
import torch
from nearness import near
from torch import nn

import convgen.torch

pytestmark = [pytest.mark.costly, pytest.mark.filterwarnings("ignore")]


def conv() -> nn.Conv2d:
    return nn.Conv2d(3, 3, 3, padding=1)


def fast(model, x):
    return convgen.torch.optimize(model, x, inductor=False)


def image(seed: int = 0):
    return torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


class Slotted:
    __slots__ = ("last",)


@dataclass(slots=True)
class Frame:
    last: object = None


class Attributes(dict):
    """Which has state beside its items."""


class Keeps(nn.Module):
    """What it computed last is added to what it computes."""

    def __init__(self, read, write, holder=None) -> None:
        super().__init__()
        self.conv, self.holder, self.read, self.write = conv(), holder, read, write

    def forward(self, x):
        y, last = self.conv(x), self.read(self)
        y = y if last is None else y + last
        self.write(self, y)
        return y


def of_attribute(holder):
    return Keeps(lambda m: getattr(m.holder, "last", None), lambda m, y: setattr(m.holder, "last", y), holder)


class Swaps(nn.Module):
    """Its layers take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(), conv()

    def forward(self, x):
        self.a, self.b = self.b, self.a
        return self.a(x)


class WarmsUp(nn.Module):
    """From its fourth call on it gives what it computed in the third."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.count, self.kept = conv(), 0, None

    def forward(self, x):
        self.count += 1
        if self.count <= 3:
            self.kept = self.conv(x)
        return self.kept + 0


class Streams(nn.Conv2d):
    """A layer that keeps its last input."""

    last = None

    def forward(self, x):
        y = super().forward(x if self.last is None else x + self.last)
        self.last = x
        return y


STATEFUL = {
    "slots": lambda: of_attribute(Slotted()),
    "dataclass with slots": lambda: of_attribute(Frame()),
    "attributes of a dict": lambda: of_attribute(Attributes()),
    "a bare module": lambda: of_attribute(nn.Module()),
    "keys that look alike": lambda: Keeps(
        lambda m: m.holder[1], lambda m, y: m.holder.update({1: y}), {1: None, "1": None}
    ),
    "a layer of torch": lambda: Keeps(
        lambda m: getattr(m.conv, "last", None), lambda m, y: setattr(m.conv, "last", y)
    ),
    "a parametrized layer": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(Streams(3, 3, 3, padding=1))),
    "layers that take turns": Swaps,
    "a cache that fills": WarmsUp,
}  # fmt: skip


@pytest.mark.parametrize("kind", STATEFUL)
@torch.no_grad()
def test_state_is_no_constant_wherever_it_is(kind):
    model = STATEFUL[kind]().eval()
    right = copy.deepcopy(model)
    ready = fast(model, image())
    for i in range(6):
        near(ready(image(i)), right(image(i)))


class MakesLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(), None

    def forward(self, x):
        if self.second is None:
            self.second = conv()
        return self.second(self.first(x))


@torch.no_grad()
def test_a_model_that_makes_layers_stays_as_it_is():
    model = MakesLayers().eval()
    ready = fast(model, image())
    first = ready(image())
    near(ready(image()), first)
    near(model(image()), first)
    assert "its forward makes layers" in ready.report.notes[0]


class Scaled(nn.Module):
    def __init__(self, by: int) -> None:
        super().__init__()
        self.conv, self.by = conv(), by

    def forward(self, x):
        return self.conv(x) * self.by


class InASet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branches = conv(), {Scaled(by) for by in range(5)}

    def forward(self, x):
        x = self.stem(x)
        return sum(branch(x) for branch in self.branches)


class Reorders(nn.Module):
    """At its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.order = nn.ModuleList([conv(), conv()]), [1, 0]

    def forward(self, x):
        if self.order != [0, 1]:
            self.blocks, self.order = nn.ModuleList([self.blocks[i] for i in self.order]), [0, 1]
        return self.blocks[1](self.blocks[0](x).relu())


@pytest.mark.parametrize("made", [InASet, Reorders])
@torch.no_grad()
def test_weights_are_those_of_their_modules_in_any_order(made):
    for _ in range(3):
        model = made().eval()
        right = copy.deepcopy(model)
        ready = fast(model, image())
        for _ in range(2):
            near(ready(image()), right(image()) if made is Reorders else model(image()))


class First(nn.Module):
    """It keeps the memory that its filters had."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.first = self.conv.weight.detach()

    def forward(self, x):
        return nn.functional.conv2d(x, self.first, padding=1) - self.conv(x)


@torch.no_grad()
def test_an_attribute_on_a_weights_memory_stays_when_the_weight_goes():
    model = First().eval()
    ready = fast(model, image())
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()}, assign=True)
    near(ready(image()), model(image()))


CHANGES = {
    "a module": lambda m: m.__setitem__(2, nn.Sequential(conv(), nn.Sigmoid()).eval()),
    "one more": lambda m: m.insert(1, nn.Sigmoid().eval()),
    "a bias": lambda m: setattr(m[0], "bias", nn.Parameter(torch.ones(3))),
}


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_changes_while_it_is_prepared_are_noticed(change, monkeypatch):
    model = nn.Sequential(nn.Conv2d(3, 3, 3, bias=False), nn.ReLU(), conv()).eval()
    export = torch.export.export

    def changing(*args, **kwargs):  # as another thread would
        program = export(*args, **kwargs)
        CHANGES[change](model)
        monkeypatch.undo()
        return program

    monkeypatch.setattr(torch.export, "export", changing)
    ready = fast(model, image())
    near(ready(image()), model(image()))


@torch.no_grad()
def test_a_model_that_others_change_all_the_time_computes_something_of_it():
    model = nn.Sequential(conv(), nn.ReLU(), conv()).eval()
    ready, others, stop = fast(model, image()), [model[2], conv().eval()], threading.Event()
    expected = [nn.Sequential(model[0], model[1], other)(image()) for other in others]

    def swap() -> None:
        while not stop.wait(1e-4):  # without a pause, it takes the interpreter from the calls
            model[2] = others[model[2] is others[0]]

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        found = [ready(image()) for _ in range(12)]
    finally:
        stop.set()
        thread.join()
    for each in found:
        assert any(torch.allclose(each, one, atol=1e-4) for one in expected)


@torch.no_grad()
def test_threads_get_the_strides_of_the_models_own_from_the_first_call_on():
    class Rolls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = conv()

        def forward(self, x):
            return self.conv(x).roll(1, 2)

    model = Rolls().eval()
    expected = model(image()).stride()
    for _ in range(5):
        ready, found, together = fast(model, image()), [], threading.Barrier(4)

        def call(ready=ready, found=found, together=together) -> None:
            with torch.no_grad():
                together.wait()
                found.append(ready(image()).stride())

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 4


@torch.no_grad()
def test_a_module_is_found_by_the_nearest_way_to_it():
    class Holder:
        pass

    class Far(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, inner, far = conv(), Holder(), Holder()
            inner.s, far.x = Holder(), Holder()
            inner.s.module = conv().eval()
            far.x.y = inner
            self.far, self.near = far, inner

        def forward(self, x):
            return self.near.s.module(self.conv(x))

    model = Far().eval()
    ready = fast(model, image())
    module = model.near.s.module
    module.weight = nn.Parameter(module.weight * 2)
    near(ready(image()), model(image()))


@torch.no_grad()
def test_parametrizations_may_be_added_to_a_model_for_inference():
    model = nn.Sequential(conv(), nn.ReLU()).eval()
    ready = fast(model, image())
    nn.utils.parametrizations.weight_norm(model[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        near(ready(image()), model(image()))


class OfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(), conv()

    def forward(self, x, z):
        return self.first(x) + self.second(z)


@pytest.mark.parametrize("by_name", [False, True])
@torch.no_grad()
def test_an_example_may_have_one_tensor_twice(by_name):
    model, x = OfTwo().eval(), image()
    given = ((x,), {"z": x}) if by_name else ((x, x), {})
    ready = convgen.torch.optimize(model, given[0], kwargs=given[1], inductor=False)
    found = ready(image(), z=image(1)) if by_name else ready(image(), image(1))
    near(found, model(image(), image(1)))
