"""Manifests survive JSON exactly, and what a cached kernel needs imports no heavy module."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import problems

from convgen.cache import Cache
from convgen.ir.dtypes import TENSOR_DTYPES
from convgen.ir.plan import Fill, Gemm, Launch, Param, Plan, TensorMap, Workspace
from convgen.ir.tensor import Tensor
from convgen.runtime.artifacts import Artifact
from convgen.runtime.manifest import Manifest, ManifestError
from convgen.runtime.nvrtc import Resources
from convgen.targets import TARGETS

NUMBERS = st.integers(-(2**62), 2**62)
TUPLES = st.lists(NUMBERS, max_size=5).map(tuple)
TEXT = st.text(max_size=12)


def records(kind: type, **special: st.SearchStrategy) -> st.SearchStrategy:
    """Values of a record type, each field by its annotation."""
    by_type = {
        "str": TEXT, "int": NUMBERS, "bool": st.booleans(), "float": st.floats(allow_nan=False),
        "tuple[int, ...]": TUPLES, "tuple[int, int, int]": st.tuples(NUMBERS, NUMBERS, NUMBERS),
    }  # fmt: skip
    return st.builds(kind, **{f.name: special[f.name] if f.name in special else by_type[f.type] for f in fields(kind)})


@st.composite
def tensors(draw) -> Tensor:
    extents = tuple(draw(st.lists(st.integers(1, 2**40), min_size=1, max_size=5)))
    grouped = draw(st.booleans())
    split = draw(st.integers(0, len(extents)))
    return Tensor(
        draw(TEXT), draw(st.sampled_from(["x", "w", "y", "lowered", "operand"])), draw(st.sampled_from(TENSOR_DTYPES)),
        tuple("nhwck"[: len(extents)]), extents, (split, len(extents) - split) if grouped else None,
    )  # fmt: skip


PARAMS = records(Param, map=st.none() | records(TensorMap))
STEPS = records(Launch, params=st.lists(PARAMS, max_size=3).map(tuple)) | records(Gemm) | records(Fill)
MANIFESTS = st.builds(
    Manifest,
    **{f.name: TEXT for f in fields(Manifest) if f.type == "str"},
    macs=NUMBERS,
    min_bytes=NUMBERS,
    notes=st.lists(TEXT, max_size=2).map(tuple),
    reads=st.lists(tensors(), max_size=2).map(tuple),
    operands=st.lists(tensors(), max_size=2).map(tuple),
    result=tensors(),
    steps=st.lists(STEPS, max_size=3).map(tuple),
    workspaces=st.lists(records(Workspace), max_size=2).map(tuple),
    resources=st.dictionaries(TEXT, records(Resources), max_size=2),
    flags=st.lists(TEXT, max_size=3).map(tuple),
)


@settings(deadline=None)
@given(MANIFESTS)
def test_json_round_trip(manifest):
    text = manifest.to_json()
    again = Manifest.from_json(text)
    assert again == manifest
    assert again.to_json() == text


@settings(deadline=None, max_examples=30)
@given(problems())
def test_manifest_of_a_plan(problem):
    plan = Plan(
        problem, TARGETS["sm_90a"], "direct", "tile 4", (Fill("y"),), (Workspace("s", 8),), "because", ("note",)
    )
    figures = {"convgen_k": Resources(1, 2, 3, 4, 5, 6)}
    data = json.loads(Manifest.of(plan, figures, "13.0", ("-a",)).to_json())
    assert data["name"] == problem.name
    assert data["op"] == problem.op.value
    assert data["spec"] == str(problem)
    assert (data["macs"], data["min_bytes"], data["digest"]) == (problem.macs, problem.min_bytes, problem.digest)
    assert (data["target"], data["strategy"], data["config"], data["reason"]) == (
        "sm_90a",
        "direct",
        "tile 4",
        "because",
    )
    assert data["resources"]["convgen_k"]["registers"] == 1
    assert [t["name"] for t in data["reads"]] == [t.name for t in problem.reads]
    for made, tensor in zip([*data["reads"], data["result"]], [*problem.reads, problem.result], strict=True):
        assert tuple(made["shape"]) == tensor.shape
        assert tuple(made["strides"]) == tensor.strides


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 0}', '{"schema": 1}', "\xff"])
def test_what_is_no_manifest_is_refused(text):
    with pytest.raises(ManifestError, match="manifest"):
        Manifest.from_json(text)


def test_a_wrong_type_in_a_field_is_refused():
    data = json.loads(A_MANIFEST.to_json())
    for field, value in {"macs": "many", "reads": 3, "steps": [{"step": "dance"}], "result": None}.items():
        with pytest.raises(ManifestError, match="field"):
            Manifest.from_json(json.dumps(data | {field: value}))


X = Tensor("x", "x", "f16", ("n", "c"), (2, 8))
A_MANIFEST = Manifest(
    "0", "tiny", "fprop", "direct", "", "", (), "", "sm_90a", "", "conv tiny {}", 1, 2, (X,), (), replace(X, role="y"),
    (Launch("convgen_tiny", (1, 1, 1), 32, (Param("x", "pointer", "x"),)),), (), {}, "13.0", (),
)  # fmt: skip

HIT = """
import sys, pathlib
from convgen.runtime import artifacts
from convgen.cache import Cache
from convgen.runtime.kernel import Kernel
from convgen.ir import plan
artifacts.schema_digest()
kernel = Kernel(artifacts.load(sys.argv[2], Cache(pathlib.Path(sys.argv[1]))))
assert kernel.name == "tiny" and kernel.cubin == b"cubin"
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_kernel_from_the_cache_imports_nothing_heavy(tmp_path):
    artifact = Artifact("a0", A_MANIFEST, "// source", b"cubin", "ptx", "log")
    Cache(tmp_path).put("a0", artifact.files())
    run = subprocess.run([sys.executable, "-c", HIT, str(tmp_path), "a0"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    heavy = {"sympy", "lark", "jinja2", "numpy", "cupy", "cupy_backends", "torch", "ml_dtypes", "rich"}
    assert not heavy & set(run.stdout.split())
