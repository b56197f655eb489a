"""Names that the language had work for a release, with a warning that says the present one."""

from __future__ import annotations

import pytest

from convgen import driver, requests
from convgen.diagnostics import RenamedWarning
from convgen.kernels import renamed, strategies

SPEC = """conv a {{
  input x: f16[n=2, h=12, w=12, c={c}]
  filter w: f16[k=64, r=3, s=3, c{of}]
  output y: f16[n, p, q, k]
  pad 1{more}
  strategy {strategy}
}}
"""
#: Old blocks, the ones that say the same now, and what the warnings say.
BLOCKS = (
    (
        "tma_patch { rows channels  pixels 64 }", "tma_halo { swap_ab 1  tile m=64 }",
        ["strategy `tma_patch` is now `tma_halo`", "`rows channels` of tma_halo is now `swap_ab 1`",
         "`pixels 64` of tma_halo is now `tile m=64`"],
    ),
    (
        "tma_im2col { merge 2  split 2 }", "tma_im2col { k_blocks 2  split_k 2 }",
        ["`merge 2` of tma_im2col is now `k_blocks 2`", "`split 2` of tma_im2col is now `split_k 2`"],
    ),
    (
        "tma_im2col { rows pixels  cluster 2  shares w }", "tma_im2col { swap_ab 0  cluster 2  multicast b }",
        ["`rows pixels` of tma_im2col is now `swap_ab 0`", "`shares w` of tma_im2col is now `multicast b`"],
    ),
    (
        "implicit_gemm { kernel gather  split 2 }", "implicit_gemm { kernel mma_gemm  split_k 2 }",
        ["`kernel gather` of implicit_gemm is now `kernel mma_gemm`", "`split 2` of implicit_gemm is now `split_k 2`"],
    ),
)  # fmt: skip


def request(block: str):
    text = SPEC.format(c=64, of="", more="", strategy=block)
    return driver.load(driver.Spec(text))[0].request


@pytest.mark.parametrize(("old", "now", "told"), BLOCKS, ids=[old for old, _, _ in BLOCKS])
def test_an_old_block_is_read_as_the_present_one(old: str, now: str, told: list[str]):
    with pytest.warns(RenamedWarning) as found:
        read = request(old)
    assert [str(w.message).endswith(text) for w, text in zip(found, told, strict=True)] == [True] * len(told)
    present = request(now)
    assert (read.strategy, read.options) == (present.strategy, present.options)


def test_an_old_name_is_warned_of_each_time(tmp_path, monkeypatch):
    """The cache would keep silent."""
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path))
    spec = driver.Spec(SPEC.format(c=64, of="", more="", strategy="implicit_gemm { kernel gather }"))
    for ask in (requests.check_all, requests.check_all, requests.compile_all, requests.compile_all):
        with pytest.warns(RenamedWarning, match="`kernel gather` of implicit_gemm is now `kernel mma_gemm`") as found:
            assert ask(spec)
        assert [w.filename for w in found] == [__file__]


def test_every_present_name_exists():
    """A row that leads nowhere would send people to a name that is refused."""
    assert set(renamed.STRATEGIES.values()) <= set(strategies.NAMES)
    for row in renamed.OPTIONS:
        options = {option.name: option for option in strategies.STRATEGIES[row.strategy].options}
        assert row.old == row.new or row.old not in options
        assert all(options[row.new].allows(value) for value in row.values.values()), row


def test_a_strategy_asked_for_beside_the_spec():
    with pytest.warns(RenamedWarning, match="`tma_patch` is now `tma_halo`") as found:
        assert (
            driver.Spec(SPEC.format(c=64, of="", more="", strategy="auto"), strategy="tma_patch").strategy == "tma_halo"
        )
    assert [w.filename for w in found] == [__file__]
