"""Borders of an image's own pixels: a convolution's own, or a pass's that makes the image anyway."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402

nn = torch.nn
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
NAMES = {
    torch.ops.aten.reflection_pad1d.default: "reflect", torch.ops.aten.reflection_pad2d.default: "reflect",
    torch.ops.aten.reflection_pad3d.default: "reflect", torch.ops.aten.replication_pad2d.default: "replicate",
}  # fmt: skip
IMAGE = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)


def passes_and_modes(monkeypatch, model, x, **options):
    """The borders that the graph makes, and the padding modes of its convolutions; the results are the model's."""
    graphs = []
    keep = lambda run, *_: graphs.append(run.graph) or run  # noqa: E731
    monkeypatch.setattr("convgen.torch.network.prepare.compiled", keep)
    monkeypatch.setattr("convgen.torch.network.prepare.check_strides", lambda graph: graphs.append(graph))
    model = model.eval()
    with torch.no_grad():
        torch.testing.assert_close(ct.optimize(model, x, **options)(x), model(x), rtol=1e-4, atol=1e-4)
    fused = graphs[0].find_nodes(op="call_function", target=torch.ops.convgen.fused_conv.default)
    made = [NAMES[node.target] for node in graphs[0].nodes if node.target in NAMES]
    for node in fused:
        x = node.args[0].meta["val"]
        assert x.dim() == 3 or x.is_contiguous(memory_format=[torch.channels_last, torch.channels_last_3d][x.dim() - 4])
    return made, [node.args[8] for node in fused]


@pytest.mark.parametrize(
    ("rank", "pad"), [(1, "ReflectionPad1d"), (2, "ReflectionPad2d"), (2, "ReplicationPad2d"), (3, "ReflectionPad3d")]
)
def test_a_normalization_pads_on_its_way(monkeypatch, rank, pad):
    conv, norm, border = getattr(nn, f"Conv{rank}d"), getattr(nn, f"InstanceNorm{rank}d"), getattr(nn, pad)
    model = nn.Sequential(conv(4, 6, 3, padding=1), norm(6), nn.ReLU(), border(1), conv(6, 4, 3, stride=2))
    x = torch.randn(2, 4, *[6] * rank)
    made, modes = passes_and_modes(monkeypatch, model, x)
    assert modes == ["zeros", "zeros"] and made == ["replicate" if pad.startswith("Repl") else "reflect"]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.InstanceNorm2d(4)
        self.border = nn.ReflectionPad2d(1)

    def forward(self, x):
        y = x + self.norm(self.a(self.border(x)))
        return y + self.norm(self.b(self.border(y)))


def test_an_image_that_is_read_elsewhere_is_padded_by_the_convolution(monkeypatch):
    made, modes = passes_and_modes(monkeypatch, Residual(), IMAGE)
    assert modes == ["reflect", "reflect"] and not made


BEHIND_EPILOGUES = {
    "an activation": nn.Sequential(nn.Conv2d(4, 6, 1), nn.SiLU(), nn.ReflectionPad2d(1), nn.Conv2d(6, 4, 3)),
    "a layer": nn.Sequential(nn.Conv2d(4, 6, 1), nn.ReflectionPad2d((1, 2, 0, 1)), nn.Conv2d(6, 4, 3)),
    "nothing": nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3)),
    "BatchNorm": nn.Sequential(
        nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.ReflectionPad2d(1), nn.Conv2d(6, 4, 3)
    ),
}


@pytest.mark.parametrize("behind", BEHIND_EPILOGUES)
def test_behind_an_epilogue_no_pass_is_made_for_the_border(monkeypatch, behind):
    made, modes = passes_and_modes(monkeypatch, BEHIND_EPILOGUES[behind], IMAGE)
    assert modes[-1] == "reflect" and not made


def test_without_inductor_there_are_no_passes_that_could(monkeypatch):
    model = nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.InstanceNorm2d(6), nn.ReLU(), nn.ReflectionPad2d(1), nn.Conv2d(6, 4, 3)
    )
    made, modes = passes_and_modes(monkeypatch, model, torch.randn(2, 4, 6, 6), inductor=False)
    assert modes == ["zeros", "reflect"] and not made


def test_the_copy_of_an_image_that_lies_otherwise_is_a_pass(monkeypatch):
    model = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(4, 4, 3))
    made, modes = passes_and_modes(monkeypatch, model, torch.randn(2, 4, 6, 6))
    assert modes == ["zeros"] and made == ["reflect"]


REARRANGED = {
    "PixelShuffle": nn.Sequential(nn.PixelShuffle(2), nn.ReLU()),
    "PixelShuffle before a normalization": nn.Sequential(nn.PixelShuffle(2), nn.InstanceNorm2d(1), nn.ReLU()),
    "a view": nn.Sequential(nn.Flatten(2), nn.Unflatten(1, (2, 2)), nn.Flatten(2), nn.Unflatten(2, (3, 24)), nn.ReLU()),
}


@pytest.mark.parametrize("how", REARRANGED)
def test_behind_an_image_whose_pixels_move_the_convolution_pads(monkeypatch, how):
    model = nn.Sequential(nn.Conv2d(4, 4, 1), REARRANGED[how], nn.ReplicationPad2d(1), nn.LazyConv2d(4, 3)).eval()
    model(IMAGE)
    made, modes = passes_and_modes(monkeypatch, model, IMAGE)
    assert modes[-1] == "replicate" and not made
