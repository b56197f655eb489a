"""Arguments of optimized models: lists and dicts that a forward writes to, objects of classes torch does not know."""

import gc
import warnings
import weakref

import pytest
import torch
from nearness import near
from torch import nn

import convgen.torch

pytestmark = [pytest.mark.costly, pytest.mark.filterwarnings("ignore")]


def optimized(model, *args):
    return convgen.torch.optimize(model.eval(), args, inductor=False)


class Writes(nn.Module):
    """Into a container: what the call before left there, and its own features."""

    def __init__(self, how):
        super().__init__()
        self.conv, self.how = nn.Conv2d(3, 3, 3, padding=1), how

    def forward(self, x, given):
        y = self.conv(x)
        if self.how == "cache":
            y = y if given[0] is None else y + given[0]
            given[0] = y
        elif self.how == "dict":
            given["features"]["last"] = y
            given["calls"] = given.get("calls", 0) + 1
        else:
            given.append(y)
        return y.relu()


GIVEN = {"cache": lambda: [None], "dict": lambda: {"features": {}}, "append": list}


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("how", GIVEN)
@torch.no_grad()
def test_containers_among_the_arguments_are_written_to(how, by_name):
    model, x = Writes(how).eval(), torch.randn(2, 3, 8, 8)
    args, kwargs = ((x,), {"given": GIVEN[how]()}) if by_name else ((x, GIVEN[how]()), {})
    fast = convgen.torch.optimize(model, args, kwargs=kwargs, inductor=False)
    assert (*args, *kwargs.values())[1] == GIVEN[how]()  # the example stays as it is
    found, expected = GIVEN[how](), GIVEN[how]()
    for _ in range(3):
        near(fast(x, given=found) if by_name else fast(x, found), model(x, expected))
        near(found, expected)
    assert "it writes into lists or dicts among its arguments" in fast.report.notes[0]
    assert [row.layer for row in fast.report] == ["conv"]


class Collects(nn.Module):
    """By a part that appends to a list; and it branches itself."""

    def __init__(self):
        super().__init__()
        self.part = Writes("append")

    def forward(self, x):
        features = []
        y = self.part(x, features)
        return y + features[0] if y.sum().item() > -1e9 else y


@torch.no_grad()
def test_parts_write_to_lists_of_the_whole():
    model, x = Collects().eval(), torch.randn(2, 3, 8, 8)
    fast = optimized(model, x)
    for _ in range(2):
        near(fast(x), model(x))
    assert any(n.startswith("part: ") and "it writes into lists" in n for n in fast.report.notes)


@torch.no_grad()
def test_containers_that_are_read_alone_do_not_matter():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3)

        def forward(self, x, given):
            given = dict(given, more=1)
            return self.conv(x) * given["scale"]

    model, x = Reads().eval(), torch.randn(2, 3, 8, 8)
    fast = optimized(model, x, {"scale": 2.0})
    near(fast(x, {"scale": 2.0}), model(x, {"scale": 2.0}))
    assert not any("optimized at their first call" in note for note in fast.report.notes)


class Nested:
    """As DETR's NestedTensor."""

    def __init__(self, tensor):
        self.tensor = tensor


class OfNested(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

    def forward(self, given):
        return self.body(given.tensor)


@torch.no_grad()
def test_objects_of_other_classes_are_one_kind_and_are_not_kept():
    model, alive = OfNested().eval(), []
    fast = optimized(model, Nested(torch.randn(2, 3, 8, 8)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            given = Nested(torch.randn(2, 3, 8, 8))
            alive.append(weakref.ref(given.tensor))
            near(fast(given), model(given))
    del given
    gc.collect()
    assert not any(each() is not None for each in alive)
    assert [row.layer for row in fast.report] == ["body.0"]


def test_an_array_in_a_tensors_place_is_the_callers_mistake():
    """Which the model itself tells, and no warning of what cannot be traced; one that a model takes is its own."""
    fast, x = optimized(nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(1, 3, 8, 8)), torch.randn(1, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError, match="conv2d"):
            fast(x.numpy())

    class OfArray(nn.Module):
        def forward(self, array):
            return torch.relu(torch.from_numpy(array))

    taken = convgen.torch.optimize(OfArray().eval(), kwargs={"array": x.numpy()}, inductor=False)
    near(taken(x.numpy()), torch.relu(x))
