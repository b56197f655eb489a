"""Networks of which not all can be rewritten: more of it is left to Inductor, and a warning says why."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import convgen.torch as ct  # noqa: E402
from convgen.torch.network import prepare  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.costly, pytest.mark.usefixtures("torch_draws")]
nn = torch.nn


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.mix = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 8)

    def forward(self, x):
        x = self.first(x).relu()
        return self.mix(x.permute(0, 2, 3, 1)).tanh()


def fails(*_: object) -> None:
    raise ValueError("Cannot view a tensor")


@pytest.mark.parametrize(("failing", "fused", "said"), [
    ("linears_as_convolutions", 1, ["linear layers"]),
    ("restore", 0, ["linear layers", "left to Inductor"]),
], ids=["linear layers", "all"])  # fmt: skip
def test_what_cannot_be_rewritten_is_left_to_inductor(failing: str, fused: int, said: list[str], monkeypatch) -> None:
    monkeypatch.setattr(prepare, failing, fails)
    model, x = Small().eval(), torch.randn(2, 3, 6, 5)
    with pytest.warns(UserWarning) as caught:
        optimized = ct.optimize(model, x)
    warned = [str(w.message) for w in caught if "convgen.torch.optimize" in str(w.message)]
    notes = [note for note in optimized.report.notes if "ValueError" in note]
    for what, text, note in zip(said, warned, notes, strict=True):
        assert what in text and note in text and "ValueError: Cannot view a tensor" in note
    assert len([row for row in optimized.report if row.fused]) == fused
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x))


def test_without_inductor_parts_are_left(monkeypatch) -> None:
    monkeypatch.setattr(prepare, "linears_as_convolutions", fails)
    model, x = Small().eval(), torch.randn(2, 3, 6, 5)
    with pytest.warns(UserWarning, match="parts"):
        optimized = ct.optimize(model, x, inductor=False)
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x))


def test_short_memory_is_told(monkeypatch) -> None:
    def has_none(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    model, x = nn.Sequential(Small(), nn.Flatten()).eval(), torch.randn(2, 3, 6, 5)
    monkeypatch.setattr(prepare, "fold_batch_norms", has_none)
    with pytest.warns(UserWarning, match="memory is short for the whole: OutOfMemoryError: CUDA out of memory"):
        optimized = ct.optimize(model, x, inductor=False)
    monkeypatch.undo()
    with torch.no_grad():
        torch.testing.assert_close(optimized(x), model(x))
    assert not any("traced" in note for note in optimized.report.notes)
