"""Models that write in place to what may be a view or a copy, by how tensors lie, on a CPU: results are the model's."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.torch.network import prepare  # noqa: E402
from convgen.torch.network.aliases import writes_alike  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn = torch.nn
LAST = dict(memory_format=torch.channels_last)


class Model(nn.Module):
    """A function of a convolution and an image."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.conv = function, nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return self.function(self.conv, x)


def rows_of_a_result(conv, x):
    y = conv(x)
    y.reshape(2, -1).add_(1)
    return y


def rows_before_a_layer(conv, x):
    y = torch.relu(x)
    y.flatten()[::2] = 0
    return conv(y)


def rows_of_the_input(conv, x):
    x.reshape(2, -1).mul_(2)
    return conv(x)


def ravelled(conv, x):
    y = conv(x)
    z = y.ravel()
    z.relu_()
    return y, z.sum()


def channels_last(conv, x):
    y = conv(x)
    z = y.contiguous(memory_format=torch.channels_last)
    z += 1
    return y * z


def channels_last_before_a_layer(conv, x):
    z = x.to(memory_format=torch.channels_last)
    z -= 1
    return conv(z) + x


def pixels_in_a_row(conv, x):
    """As of a block whose layers are linear, with a shortcut around it."""
    y = conv(x)
    z = y.permute(0, 2, 3, 1).contiguous()
    z *= 0.5
    return y + z.permute(0, 3, 1, 2)


FUNCTIONS = (
    rows_of_a_result, rows_before_a_layer, rows_of_the_input, ravelled, channels_last, channels_last_before_a_layer,
    pixels_in_a_row,
)  # fmt: skip


def check(model: nn.Module, x: torch.Tensor, compiled: bool = False) -> None:
    """By results and by what is left of the input."""
    if compiled:
        torch.compiler.reset()
        run = torch.no_grad()(torch.compile(model, backend=ct.compile_graph, options={"inductor": False}))
    else:
        run = ct.optimize(model, x.clone(), inductor=False)
    own, ours = x.clone(), x.clone()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = model(own)
        found = run(ours)
    torch.testing.assert_close((found, ours), (expected, own), rtol=1e-4, atol=1e-4, check_stride=True)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_written_to_a_view_is_read_in_the_rest(function, compiled):
    model, x = Model(function).eval(), torch.randn(2, 4, 5, 6)
    check(model, x, compiled)
    if not compiled:
        check(model.to(**LAST), x.to(**LAST))


def test_layouts_are_changed_where_writes_do_not_depend_on_them(monkeypatch):
    """What nothing reads afterwards does not count, and neither does a view of either layout."""

    def function(conv, x):
        y = torch.relu_(conv(x))
        y += x
        z = y.contiguous(memory_format=torch.channels_last)
        return torch.relu_(conv(z).reshape(2, -1)).sum() + torch.relu_(z).sum()

    answers = []
    monkeypatch.setattr(prepare, "writes_alike", lambda *given: answers.append(writes_alike(*given)) or answers[-1])
    check(Model(function).eval(), torch.randn(2, 4, 5, 6))
    assert answers == [True]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("how", ["contiguous", "to"])
def test_a_copy_of_the_input_with_channels_last_is_a_result_of_its_own(how, compiled):
    def function(conv, x):
        z = getattr(x, how)(memory_format=torch.channels_last)
        return conv(z), z

    model, x = Model(function).eval(), torch.randn(2, 4, 5, 6)
    check(model, x, compiled)
    last = x.to(**LAST)
    ready = ct.optimize(model, x, inductor=False)
    assert ready(x)[1].data_ptr() != x.data_ptr() and ready(last)[1] is last
    check(Model(lambda conv, x: function(conv, x)[1]).eval(), x, compiled)


def test_a_norm_of_one_image_whose_strides_say_little():
    """A view of one image has any stride along the images, by which torch does not know channels last."""

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, x):
            return self.norm(x.reshape(1, 4, -1).view(x.shape) + 1)

    check(Norm().eval(), torch.randn(1, 4, 5, 6))
