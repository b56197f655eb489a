"""What optimized models notice: weights that were written, modules that were switched, tensors of inference mode."""

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

import convgen.torch
from convgen.runtime.errors import WrongArguments

pytestmark = [pytest.mark.costly, pytest.mark.filterwarnings("error:convgen")]


def small_network():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 3, 3)).eval()


def agree(made, model, x):
    with torch.no_grad():
        torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("compiled", [False, True], ids=["optimize", "compile"])
@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad"])
def test_the_step_of_a_fused_optimizer_is_noticed(kind, compiled):
    model, x = small_network(), torch.randn(2, 3, 8, 8)
    if compiled:
        made = torch.compile(model, backend="convgen", options={"inductor": False})
    else:
        made = convgen.torch.optimize(model, x, inductor=False)
    agree(made, model, x)
    optimizer = getattr(torch.optim, kind)(model.parameters(), 0.1, fused=True)
    for _ in range(2):
        model(x).square().mean().backward()
        optimizer.step()
        agree(made, model, x)


def test_statistics_of_a_forward_in_training_mode_are_there_after_refresh():
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).eval(), torch.randn(4, 3, 8, 8)
    made = torch.compile(model, backend="convgen", options={"inductor": False})
    agree(made, model, x)
    model.train()
    with torch.no_grad():
        model(3 * x + 1)
    model.eval()
    convgen.torch.refresh()
    agree(made, model, x)


def test_weights_of_inference_mode_are_packed_anew_by_refresh():
    with torch.inference_mode():
        model, x = small_network(), torch.randn(2, 3, 8, 8)
        made = convgen.torch.optimize(model, x, inductor=False)
        agree(made, model, x)
        model[0].weight.mul_(2)
        convgen.torch.refresh()
        agree(made, model, x)


def test_what_was_prepared_in_inference_mode_follows_weights_outside_of_it():
    model, x = small_network(), torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        made = convgen.torch.optimize(model, x, inductor=False)
        made(x)
    with torch.no_grad():
        model[0].weight.mul_(2)
    agree(made, model, x)


@pytest.mark.parametrize("of", ["1", "2.0"])
def test_a_module_that_trains_again_is_named(of):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Sequential(nn.Dropout(0.5))).eval()
    x = torch.randn(2, 3, 8, 8)
    made = convgen.torch.optimize(model, x, inductor=False)
    model.get_submodule(of).train()
    with pytest.raises(WrongArguments, match=f"module '{of}' of the model is in training mode"):
        made(x)
    model.eval()
    agree(made, model, x)


def test_data_parallel_is_refused():
    made = convgen.torch.optimize(small_network(), torch.randn(2, 3, 8, 8), inductor=False)
    with pytest.raises(WrongArguments, match="DataParallel does not serve an optimized model"):
        made._replicate_for_data_parallel()


def test_arguments_by_name_alone():
    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, *, pixels):
            return self.conv(pixels)

    model, x = ByName().eval(), torch.randn(2, 3, 8, 8)
    made = convgen.torch.optimize(model, (), kwargs={"pixels": x}, inductor=False)
    assert [row.layer for row in made.report]
    torch.testing.assert_close(made(pixels=x), model(pixels=x).detach(), rtol=1e-4, atol=1e-4)


def test_a_model_stays_prepared_for_so_many_kinds_of_inputs(monkeypatch):
    monkeypatch.setattr("convgen.torch.network.prepare.MOST_PREPARED", 3)
    model = nn.Conv2d(3, 4, 3).eval()
    made = convgen.torch.optimize(model, torch.randn(1, 3, 8, 8), inductor=False)
    for width in range(4, 10):
        agree(made, model, torch.randn(1, 3, 5, width))
    assert len(made._prepared) == 3


def test_a_compiled_model_follows_memory_that_is_exchanged():
    """As moving averages of weights are, and weights that wait on the CPU; each is prepared once."""
    model, x = small_network(), torch.randn(2, 3, 8, 8)
    made = torch.compile(model, backend="convgen", options={"inductor": False})
    agree(made, model, x)
    known = len(convgen.torch.reports())
    for _ in range(3):
        for p in model.parameters():
            p.data = p.data + 0.1
        agree(made, model, x)
    assert len(convgen.torch.reports()) == known


CONVOLUTIONS = {
    "1d": (convgen.torch.Conv1d, (2, 3, 8)),
    "2d": (convgen.torch.Conv2d, (2, 3, 8, 8)),
    "3d": (convgen.torch.Conv3d, (2, 3, 5, 5, 5)),
    "unbatched": (convgen.torch.Conv2d, (3, 8, 8)),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_results_and_gradients_may_be_written_in_place(case):
    layer, shape = CONVOLUTIONS[case]
    conv, x = layer(3, 4, 3), torch.randn(shape, requires_grad=True)
    conv(x).relu().sum().backward()
    expected = [t.grad.clone() for t in (x, conv.weight, conv.bias)]
    x.grad, conv.weight.grad, conv.bias.grad = None, None, None
    nn.Sequential(conv, nn.ReLU(inplace=True))(x).sum().backward()
    for t, e in zip((x, conv.weight, conv.bias), expected, strict=True):
        torch.testing.assert_close(t.grad, e)
    (g,) = torch.autograd.grad(conv(x).square().sum(), x, create_graph=True)
    g.mul_(2)
    g.sum().backward()


def test_weights_are_packed_once_for_all_kinds_of_inputs():
    model = nn.Sequential(nn.Conv2d(3, 9, 3), nn.BatchNorm2d(9), nn.Conv2d(9, 56, 3)).eval()
    made = convgen.torch.optimize(model, torch.randn(2, 3, 8, 8), inductor=False)
    for width in (9, 10, 11):
        agree(made, model, torch.randn(2, 3, 8, width))
    gc.collect()
    packed = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.shape == (56, 9, 3, 3)]
    assert len({t.data_ptr() for t in packed}) == 1  # beside the weight itself
    with torch.no_grad():
        model[2].weight.mul_(2)
    for width in (9, 8, 11, 10, 12, 9):
        agree(made, model, torch.randn(2, 3, 8, width))


@pytest.mark.parametrize("compiled", [False, True], ids=["optimize", "compile"])
def test_weights_that_change_places_with_others_and_back(compiled):
    """As those of a moving average do, for an evaluation of other shapes."""
    model, other = small_network(), small_network()
    shapes = [torch.randn(2, 3, 8, width) for width in (8, 9, 10)]
    if compiled:
        made = torch.compile(model, backend="convgen", options={"inductor": False}, dynamic=False)
    else:
        made = convgen.torch.optimize(model, shapes[0], inductor=False)

    def change_places():
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.data, q.data = q.data, p.data

    for x in (*shapes[:2], "swap", shapes[1], "swap", *shapes, "swap", *shapes, "swap", shapes[0]):
        if isinstance(x, str):
            change_places()
        else:
            agree(made, model, x)


def test_a_compiled_model_keeps_no_weights_that_were_exchanged():
    class WritesItsInput(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            x.add_(1)
            return self.conv(x)

    torch.compiler.reset()
    model, alive = WritesItsInput().eval(), []
    made = torch.compile(model, backend="convgen", options={"inductor": False})
    for _ in range(3):
        model.conv.weight = nn.Parameter(torch.randn(4, 3, 3, 3))
        alive.append(weakref.ref(model.conv.weight))
        x = torch.randn(2, 3, 8, 8)
        agree(lambda x: made(x.clone()), lambda x: model(x.clone()), x)
    torch.compiler.reset()
    gc.collect()
    assert [each() is not None for each in alive] == [False, False, True]


def test_a_module_that_was_the_model_s_may_train():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5)).eval()
    x = torch.randn(2, 3, 8, 8)
    made = convgen.torch.optimize(model, x, inductor=False)
    former = model[1]
    model[1] = nn.Identity().eval()
    former.train()
    agree(made, model, x)


class OfWeights(nn.Module):
    """With results that follow from weights alone."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("anchors", torch.arange(4.0))

    def forward(self, x):
        twice = self.anchors * 2
        return self.conv(x), twice, twice[1:], self.conv.bias * 1, self.conv.weight.exp()


@pytest.mark.parametrize("inductor", [False, True])
@pytest.mark.parametrize("compiled", [False, True], ids=["optimize", "compile"])
@torch.no_grad()
def test_results_that_follow_from_weights_alone_are_the_caller_s(compiled, inductor):
    torch.compiler.reset()
    model, x = OfWeights().eval(), torch.randn(2, 3, 8, 8)
    if compiled:
        made = torch.compile(model, backend="convgen", options={"inductor": inductor})
    else:
        made = convgen.torch.optimize(model, x, inductor=inductor)
    for _ in range(2):
        first = made(x)
        for result in first[1:]:
            result.mul_(10)
        agree(made, model, x)
    earlier = made(x)
    kept = [result.clone() for result in earlier]
    for weight in (model.anchors, *model.parameters()):
        weight.mul_(5)
    agree(made, model, x)
    torch.testing.assert_close(earlier, tuple(kept), rtol=0, atol=0)


@pytest.mark.parametrize("inductor", [False, True])
@torch.no_grad()
def test_results_that_are_weights_or_inputs_are_these(inductor):
    class Given(OfWeights):
        def forward(self, x):
            x.mul_(2)
            return self.conv(x), self.conv.bias, x, self.anchors, self.conv.bias[:2]

    class Echo(nn.Module):
        def forward(self, x):
            return x

    model, x = Given().eval(), torch.randn(2, 3, 8, 8)
    made = convgen.torch.optimize(model, x, inductor=inductor)
    agree(lambda x: made(x.clone()), lambda x: model(x.clone()), x)
    assert made(x)[1] is model.conv.bias and made(x)[2] is x and made(x)[3] is model.anchors
    assert convgen.torch.optimize(Echo().eval(), x, inductor=inductor)(x) is x


def test_statistics_that_a_compiled_training_pass_writes_are_read_anew():
    """Without gradients, too: the graph goes to aten, whose kernel writes them without counting."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    made = torch.compile(model, backend="convgen", options={"inductor": False})
    x = torch.randn(4, 3, 8, 8) * 3 + 2
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the training pass goes to aten
        made(x)
        model.train()
        made(x)
        model.eval()
        torch.testing.assert_close(made(x), model(x))


def test_another_default_type_is_another_kind_of_call():
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.layer(x) + torch.ones(1)

    model, x = Adds().eval(), torch.randn(2, 3, 6, 6)
    made = convgen.torch.optimize(model, x, inductor=False)
    try:
        torch.set_default_dtype(torch.float64)
        with torch.no_grad():
            torch.testing.assert_close(made(x), model(x), rtol=1e-4, atol=1e-4)
    finally:
        torch.set_default_dtype(torch.float32)
