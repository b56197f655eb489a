"""Channel slices, emulated: every kernel that takes them, between poisoned neighbors that it must leave alone."""

from __future__ import annotations

import numpy as np
import pytest
from problems import make
from runs import check_plan
from slice_specs import KERNELS

import convgen
from convgen import emulator, frontend
from convgen import functional as F
from convgen.emulator import EmulationError
from convgen.ir import verify
from convgen.kernels import strategies
from convgen.runtime.errors import Misaligned
from convgen.targets import TARGETS

SPEC = """conv a {
  input x: f16[n=2, h=4, w=5, c=8 of 24]
  filter w: f16[k=8, r=3, s=3, c=8]
  output y: f16[n, p, q, k of 24]
  epilogue { operand z: f16[n, p, q, k of 16]  y = relu(acc + z) }
  pad 1
  strategy direct
}"""


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_take_slices(name: str) -> None:
    (request,) = frontend.load(f"conv a {{ {KERNELS[name]} }}")
    strategy = strategies.STRATEGIES[request.strategy]
    check_plan(strategy, request.problem, request.options, 1)


@pytest.mark.parametrize("name", [name for name in KERNELS if "fills up" in name])
def test_pixels_of_whole_rows_are_read_as_they_lie(name: str) -> None:
    """Whatever their channels; what lies beside these may be infinite."""
    (request,) = frontend.load(f"conv a {{ {KERNELS[name]} }}")
    plan = strategies.STRATEGIES[request.strategy].plan(request.problem, TARGETS["sm_90a"], request.options)
    assert not [note for note in plan.notes if note.startswith(("prepares x", "prepares y"))]


@pytest.mark.parametrize("role", ["x", "y"])
def test_what_lies_beside_a_slice_must_not_be_touched(role: str) -> None:
    """The plan of packed tensors, on a slice."""
    problem = make("fprop", 1, 8, 8, (3, 3), (1, 1))
    direct = strategies.STRATEGIES["direct"]
    plan = direct.plan(problem, TARGETS["sm_90a"], {})
    arrays = verify.random_inputs(problem, 1) | {"y": verify.poisoned(problem.y)}
    whole = np.zeros((*arrays[role].shape[:-1], 12), np.float16)
    with pytest.raises(EmulationError, match=f"out of bounds.*{role}"):
        emulator.emulate(direct.render(plan), plan.steps, arrays | {role: whole[..., :8]})


def test_a_call_takes_and_gives_views() -> None:
    kernel = convgen.compile(SPEC)
    problem_arrays = np.random.default_rng(1).standard_normal
    whole = problem_arrays((2, 4, 5, 24)).astype(np.float16)
    before = whole.copy()
    w, z = problem_arrays((8, 3, 3, 8)).astype(np.float16), problem_arrays((2, 4, 5, 16)).astype(np.float16)
    x, out = whole[..., :8], whole[..., 16:]
    made = kernel.emulate(x, w, z=z[..., 8:], out=out)
    assert made is out
    assert (whole[..., :16] == before[..., :16]).all()
    new = kernel.emulate(x, w, z=z[..., 8:])
    assert new.shape == (2, 4, 5, 8) and new.base.shape == (2, 4, 5, 24)
    assert (new == out).all() and np.isnan(new.base[..., 8:]).all()
    packed = convgen.compile(SPEC.replace(" of 24", "").replace(" of 16", ""))
    assert (packed.emulate(*map(np.ascontiguousarray, (x, w)), z=np.ascontiguousarray(z[..., 8:])) == out).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: np.ascontiguousarray(x), r"expected \(480, 120, 24, 1\).*whole\[\.\.\., first:first \+ 8\]"),
        (lambda x: x.base[..., ::3], "expected"),
        (lambda x: x.base, "expected"),
    ],
)
def test_other_strides_are_refused(change, words: str) -> None:
    kernel = convgen.compile(SPEC)
    x, w, z = np.zeros((2, 4, 5, 24), np.float16)[..., :8], np.zeros((8, 3, 3, 8), np.float16), np.zeros((2, 4, 5, 16))
    with pytest.raises(convgen.ConvgenError, match=f"(?s){words}"):
        kernel.emulate(change(x), w, z=z.astype(np.float16)[..., :8])


def test_a_slice_where_the_spec_says_packed() -> None:
    kernel = convgen.compile(SPEC.replace("c=8 of 24", "c=8"))
    x, w, z = np.zeros((2, 4, 5, 40), np.float16)[..., :8], np.zeros((8, 3, 3, 8), np.float16), np.zeros((2, 4, 5, 16))
    with pytest.raises(convgen.ConvgenError, match="write `c=8 of 40` in the spec"):
        kernel.emulate(x, w, z=z.astype(np.float16)[..., :8])


@pytest.mark.parametrize("n", [1, 3])
def test_one_row_in_a_spec_is_one_of_several_in_a_call(n: int) -> None:
    kernel = convgen.compile("""conv a {
      input x: f16[n=1, w=1, c=8 of 24]  filter w: f16[k=8, s=1, c=8]  output y: f16[n, q, k of 16]
      epilogue { operand b: f32[n, k of 9]  y = acc + b }
      dynamic n  strategy direct
    }""")
    rng = np.random.default_rng(3)
    x, b = rng.standard_normal((n, 1, 24)).astype(np.float16)[..., 8:16], rng.standard_normal((n, 9), np.float32)[:, :8]
    y = kernel.emulate(x, np.eye(8, dtype=np.float16)[:, None], b=b)
    np.testing.assert_array_equal(y, (x + b[:, None]).astype(np.float16))


def test_functions_read_and_write_slices_where_they_lie() -> None:
    """x, a residual and the result are channels of one array."""
    rng = np.random.default_rng(2)
    whole = rng.standard_normal((2, 3, 4, 48)).astype(np.float16).transpose(0, 3, 1, 2)
    before, w = whole.copy(), rng.standard_normal((8, 16, 1, 1)).astype(np.float16)
    x, z, out = whole[:, :16], whole[:, 16:24], whole[:, 40:]
    kernel = F.kernel(F.conv2d, x, w, residual=z, out=out)
    assert [t.pitch for t in kernel.manifest.tensors] == [48, None, 48, 48]
    assert F.conv2d(x, w, residual=z, out=out) is out
    expected = np.einsum("nchw,kc->nkhw", x.astype(np.float64), w[:, :, 0, 0].astype(np.float64)) + z
    assert np.allclose(out, expected, atol=0.02)
    assert (whole[:, :40] == before[:, :40]).all()


def test_a_slice_begins_where_the_gpu_can_load_it() -> None:
    spec = SPEC.replace("strategy direct", "strategy tma_im2col")
    whole, z = np.zeros((2, 4, 5, 24), np.float16), np.zeros((2, 4, 5, 16), np.float16)
    w = np.zeros((8, 3, 3, 8), np.float16)
    kernel = convgen.compile(spec)
    with pytest.raises(Misaligned, match=r"x starts at 0x.*multiple of 16 bytes(?s:.*)multiple of 8 channels"):
        kernel.emulate(whole[..., 3:11], w, z=z[..., 8:])
    kernel.emulate(whole[..., 8:16], w, z=z[..., 8:])
