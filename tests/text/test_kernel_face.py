"""What a kernel is to Python: its documentation and signature, its copies, its file."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import subprocess
import sys
import warnings
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import convgen
from convgen import driver, requests
from convgen.diagnostics import ConvgenError
from convgen.ir.plan import Fill, Launch, Param, Workspace
from convgen.ir.tensor import Tensor
from convgen.runtime.artifacts import Artifact
from convgen.runtime.errors import SavedKernelError
from convgen.runtime.manifest import SCHEMA, Manifest
from convgen.runtime.nvrtc import Resources

IMAGE = Tensor("image", "x", "f16", ("n", "h", "w", "c"), (2, 5, 6, 8))
FILTER = Tensor("weights", "w", "f16", ("k", "r", "s", "c"), (16, 3, 3, 8))
BIAS = Tensor("b", "operand", "f32", ("k",), (16,))
RESULT = Tensor("result", "y", "bf16", ("n", "p", "q", "k"), (2, 3, 4, 16))
LAUNCH = Launch("convgen_tiny", (7, 3, 2), 96, (Param("x", "pointer", "x"),), shared_bytes=1000)
MANIFEST = Manifest(
    convgen="0", name="tiny", op="fprop", strategy="direct", config="a < b & c", reason="", notes=("é",), arithmetic="",
    target="sm_90a", digest="", spec="conv tiny {\n  op fprop\n}", macs=0, min_bytes=0, reads=(IMAGE, FILTER),
    operands=(BIAS,), result=RESULT, steps=(Fill("y"), LAUNCH, LAUNCH), workspaces=(Workspace("sums", 300),),
    resources={"convgen_tiny": Resources(1, 2, 3, 4, 5, 6)}, nvrtc="13.0", flags=("-arch=sm_90a",),
)  # fmt: skip
ARTIFACT = Artifact("0", MANIFEST, "// source ü", bytes(range(256)), "// ptx", "log")
TINY = "{ input x: f16[n=1, h=2, w=2, c=8]\n filter w: f16[k=8, r=1, s=1, c=8]\n output y: f16[n, p, q, k]"


def kernel(**changes) -> convgen.Kernel:
    return convgen.Kernel(replace(ARTIFACT, manifest=replace(MANIFEST, **changes)))


def contents(k: convgen.Kernel) -> tuple:
    return k.name, k.manifest, k.source, k.cubin, k.ptx


# ---- what it says of itself --------------------------------------------------------------------


def test_signature():
    found = inspect.signature(kernel())
    assert list(found.parameters) == ["image", "weights", "b", "out", "stream", "workspace"]
    assert found.parameters["weights"].annotation == "f16[k=16, r=3, s=3, c=8]"
    assert found.bind(1, 2, b=3, out=4).arguments == {"image": 1, "weights": 2, "b": 3, "out": 4}
    for wrong in ((1, 2), (1, 2, 3, 4)):
        with pytest.raises(TypeError):
            found.bind(*wrong)


def test_a_tensor_whose_name_is_a_keyword_goes_by_place():
    found = inspect.signature(kernel(operands=(BIAS, replace(BIAS, name="lambda"), replace(BIAS, name="z"))))
    assert found.bind(1, 2, 3, 4, z=5)
    with pytest.raises(TypeError):
        found.bind(1, 2, z=5, **{"lambda": 4, "b": 3})


def test_documentation():
    shown = pydoc.plain(pydoc.render_doc(kernel()))
    for said in ("tiny: fprop by direct (a < b & c) for sm_90a", *map(str, (IMAGE, FILTER, BIAS, RESULT)), "conv tiny"):
        assert said in shown
    assert "A compiled convolution" in convgen.Kernel.__doc__


def test_repr():
    assert repr(kernel()) == "<convgen kernel tiny: fprop by direct (a < b & c) for sm_90a>"


def test_a_notebook_shows_a_table():
    class Cells(HTMLParser):
        found: list[str] = []  # noqa: RUF012
        tags: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag, attributes):
            self.tags.append(tag)

        def handle_data(self, data):
            self.found.append(data)

    Cells().feed(kernel(name="<b>")._repr_html_())
    assert set(Cells.tags) == {"table", "caption", "tr", "th", "td", "pre"}
    rows = dict(zip(Cells.found[1::2], Cells.found[2::2], strict=True))
    assert Cells.found[0] == "<b>"
    assert (rows["problem"], rows["configuration"]) == (MANIFEST.spec, "a < b & c")
    assert rows["launches"].splitlines() == ["fill y with zeros", f"2 times {LAUNCH}"]


def test_a_plan_prints_as_a_table():
    (compilation,) = driver.choose_all(driver.Spec("conv tiny " + TINY + "\n strategy im2col }"))
    title, _, *rows = str(compilation.plan).splitlines()
    assert title == "Plan of tiny for sm_90a"
    assert [" ".join(row.split()) for row in rows if row.startswith(("strategy", "step", "workspace"))] == [
        "strategy im2col",
        *(f"step {i} {step}" for i, step in enumerate(compilation.plan.steps, 1)),
        *(f"workspace {w.name}, {w.bytes:,} bytes" for w in compilation.plan.workspaces),
    ]


# ---- copies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, *(lambda k, p=p: pickle.loads(pickle.dumps(k, p)) for p in range(6))]
)
def test_a_copy_is_the_same_kernel(copied):
    original = kernel()
    other = copied(original)
    assert other is not original and isinstance(other, convgen.Kernel)
    assert contents(other) == contents(original)
    assert (inspect.signature(other), other.__doc__) == (inspect.signature(original), original.__doc__)
    assert "conv tiny" in other.explain()


def test_a_copy_in_the_same_process_still_has_its_plan():
    plan = object()
    made = convgen.Kernel(ARTIFACT, replan=lambda: plan, explain=lambda: "why")
    other = copy.deepcopy({"a list": [made]})["a list"][0]
    assert other.plan is plan and other.explain() == "why"
    assert pickle.loads(pickle.dumps(made)).plan is None


FRESH = """
import pathlib, pickle, sys
import convgen
for again in (pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()), convgen.load(sys.argv[2])):
    assert isinstance(again, convgen.Kernel)
    assert again.cubin == bytes(range(256)) and again.plan is None, again
heavy = {"sympy", "lark", "jinja2", "numpy", "cupy", "cupy_backends", "torch", "ml_dtypes", "rich"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_a_fresh_process_needs_no_spec(tmp_path):
    (tmp_path / "pickled").write_bytes(pickle.dumps(kernel()))
    kernel().save(tmp_path / "saved")
    command = [sys.executable, "-c", FRESH, "pickled", "saved"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- files -------------------------------------------------------------------------------------


def test_a_file_has_the_whole_kernel(tmp_path):
    path = tmp_path / "tiny.kernel"
    kernel().save(path)
    assert contents(convgen.load(str(path))) == contents(kernel())
    first = path.read_bytes()
    convgen.load(path).save(path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.kernel"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), how=st.sampled_from(["flip", "truncate", "insert", "append"]))
def test_a_damaged_file_is_refused(tmp_path, at, how):
    path = tmp_path / "tiny.kernel"
    kernel().save(path)
    data = bytearray(path.read_bytes())
    place = int(at * len(data))
    if how == "flip":
        data[place] ^= 1
    elif how == "truncate":
        del data[place:]
    else:
        data.insert(place if how == "insert" else len(data), 0)
    path.write_bytes(data)
    with pytest.raises(SavedKernelError, match=r"tiny\.kernel: (not a file that|saved by|damaged)"):
        convgen.load(path)


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"convgen kernel 1 x\n", b"PK\x03\x04"])
def test_what_is_no_kernel_is_refused(tmp_path, data):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(SavedKernelError, match=r"not a file that `Kernel\.save` wrote"):
        convgen.load(tmp_path / "file")


def test_another_version_s_file_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    monkeypatch.setattr("convgen.runtime.saved._FORMAT", b"0")
    kernel().save(path)
    monkeypatch.undo()
    with pytest.raises(SavedKernelError, match="another version"):
        convgen.load(path)
    monkeypatch.setattr("convgen.runtime.manifest.SCHEMA", SCHEMA - 1)
    kernel().save(path)
    monkeypatch.undo()
    with pytest.raises(SavedKernelError, match=r"file: .*compile the spec again"):
        convgen.load(path)


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    for place in (tmp_path, tmp_path / "none" / "file", tmp_path / "a\0b", ""):
        with pytest.raises(ConvgenError, match="cannot be written"):
            kernel().save(place)
    assert not list(tmp_path.iterdir())
    for place in (tmp_path, tmp_path / "none", "a\0b", ""):
        with pytest.raises(ConvgenError, match="cannot be read"):
            convgen.load(place)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    kernel().save(path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(ConvgenError, match="No space left"):
        kernel(name="other").save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["file"]


# ---- one kernel or several ---------------------------------------------------------------------


@pytest.fixture
def compiled(monkeypatch):
    """Compilation without NVRTC: a kernel for each convolution."""
    made = lambda spec: {c.name: kernel(name=c.name) for c in driver.load(spec)}  # noqa: E731
    monkeypatch.setattr(requests, "compile_all", made)


def test_one_convolution_is_a_kernel_and_several_are_a_dict(compiled):
    one, two = f"conv a {TINY} }}", f"conv a {TINY}\n op fprop dgrad }}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(convgen.compile(one), convgen.Kernel)
        assert convgen.compile_all(one).keys() == {"a"}
        assert list(convgen.compile_all(two)) == ["a_fprop", "a_dgrad"]
    with pytest.warns(DeprecationWarning, match=r"\(a_fprop, a_dgrad\): call convgen\.compile_all") as seen:
        assert convgen.compile(two).keys() == {"a_fprop", "a_dgrad"}
    assert seen[0].filename == __file__


def test_its_packages_are_there_without_an_import_of_their_own() -> None:
    code = "import convgen; print(convgen.functional.conv2d.__module__); assert 'torch' not in dir(convgen)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("convgen.functional")


def test_the_package_has_what_it_exports():
    assert all(getattr(convgen, name) for name in convgen.__all__)
    with pytest.raises(AttributeError, match="'convgen' has no attribute 'Kernels'"):
        _ = convgen.Kernels
