"""How results of Inductor's passes lie, and copies for the sake of layouts, on a CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.torch.network import prepare  # noqa: E402
from convgen.torch.network.passes import lay_out_passes  # noqa: E402
from convgen.torch.network.trace import flat_graph, is_call  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn, TF = torch.nn, torch.nn.functional
LAID_OUT = torch.ops.prims.inductor_force_stride_order.default


def images(*shape):
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def conv(x, k, *operands):
    """A convolution by convgen's operator."""
    filters = torch.arange(k * x.shape[1], dtype=x.dtype).remainder(7).sub(3).view(k, x.shape[1], 1, 1)
    steps = " ".join(["add"] * len(operands))
    return torch.ops.convgen.fused_conv(x, filters, list(operands), steps, [1, 1], [0, 0], [1, 1], 1)


def up(x, factor=2):
    return TF.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


def readers(function, *given) -> list[list[str]]:
    """Of each image that is laid out, the names of the operators that read it; results stay the same."""
    made = flat_graph(lambda *tensors: (function(*tensors),), given)
    lay_out_passes(made.graph, set())
    made.recompile()
    torch.testing.assert_close(made(*given)[0], function(*given))
    found = [node for node in made.graph.nodes if is_call(node, LAID_OUT)]
    for node in found:
        assert node.meta["val"].is_contiguous(memory_format=torch.channels_last)
    return [sorted({user.target.name().split("::")[1] for user in node.users}) for node in found]


def test_operands_are_laid_out():
    assert readers(lambda x, y: conv(x, 8, up(y)), images(1, 4, 8, 8), images(1, 8, 4, 4)) == [["fused_conv"]]


def test_operands_that_operators_make_lie_anyway():
    assert readers(lambda x: conv(x, 8, conv(x, 8)), images(1, 4, 8, 8)) == []


def test_a_value_for_each_channel_lies_anyway():
    assert readers(lambda x: conv(x, 4, x.mean((2, 3), keepdim=True).sigmoid()), images(1, 4, 8, 8)) == []


def test_concatenations_of_passes_are_laid_out_by_their_smallest_part():
    found = readers(lambda x, y: torch.cat([up(x), y.relu()], 1), images(1, 8, 4, 4), images(1, 2, 8, 8))
    assert found == [["cat"]]


def test_concatenations_with_a_convolution_lie_anyway():
    assert readers(lambda x: torch.cat([up(x), conv(up(x), 8)], 1), images(1, 8, 4, 4)) == []


def test_an_image_is_written_before_its_pixels_are_taken_again():
    assert readers(lambda x: up(up(x) + 1, 4), images(1, 8, 4, 4)) == [["_unsafe_index.Tensor"]]


def test_an_image_that_is_not_interpolated_is_not_written():
    assert readers(lambda x: up(x.relu() + 1, 4), images(1, 8, 4, 4)) == []


class Stages(nn.Module):
    """A convolution's result as tokens, normalized, and as an image again, which the model makes contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        tokens = self.norm(self.first(x).flatten(2).transpose(1, 2))
        image = tokens.transpose(1, 2).unflatten(2, x.shape[2:]).contiguous()
        return self.second(image), self.linear(image.flatten(2).transpose(1, 2))


def copies(model, x) -> list:
    """The graph's copies with channels first."""
    weights = dict(model.named_parameters())

    def function(*given):
        found = torch.func.functional_call(model, dict(zip(weights, given, strict=False)), given[-1])
        return found if isinstance(found, tuple) else (found,)

    made, _, _ = prepare._traced(function, [w.detach() for w in weights.values()], [x])
    clones = [node for node in made.graph.nodes if is_call(node, torch.ops.aten.clone.default)]
    return [node for node in clones if node.kwargs.get("memory_format") == torch.contiguous_format]


def test_contiguous_does_not_undo_channels_last():
    model, x = Stages().eval(), torch.randn(2, 3, 6, 6)
    assert copies(model, x) == []
    for inductor in (False, True):
        for found, expected in zip(ct.optimize(model, x, inductor=inductor)(x), model(x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            assert found.stride() == expected.stride()


class Rearranged(nn.Module):
    """A view of the model's own takes pixels and channels apart as they lie in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        return self.second(self.first(x).contiguous().view(-1, 16, 8).relu().view(-1, 8, 4, 4))


def test_a_view_that_needs_the_copy_makes_one():
    model, x = Rearranged().eval(), torch.randn(2, 4, 4, 4)
    assert len(copies(model, x)) == 1
    torch.testing.assert_close(ct.optimize(model, x)(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_result_is_contiguous_where_the_model_makes_it_so():
    class Last(nn.Conv2d):
        def forward(self, x):
            return super().forward(x).contiguous()

    model = Last(3, 4, 3).eval()
    x = images(1, 3, 8, 8)
    assert ct.optimize(model, x)(x).stride() == model(x).stride()
