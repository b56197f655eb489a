"""The command line: what it prints, what it writes, how it ends."""

from __future__ import annotations

import importlib
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from terminals import everything

import convgen
from convgen.__main__ import main as entry
from convgen.cache import Cache
from convgen.cli import COMMANDS, main
from convgen.gpus import GPUS

SPEC = """\
let n = 2
conv first {
  input  x: f16[n, h=8, w=8, c=16]
  filter w: f16[k=16, r=3, s=3, c=16]
  output y: f16[n, p, q, k]
  pad 1
  strategy direct
  target sm_80
}
conv second {
  input  x: f16[n, h=8, w=8, c=16]
  filter w: f16[k=16, c=16]
  output y: f16[n, p, q, k]
  strategy direct
  target sm_80
}
"""
WRONG = SPEC.replace("pad 1", "pad 1\n  color 3").replace("c=16]\n  output", "c=17]\n  output")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Each test in a folder of its own, with layer.conv, and nothing of the user's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.sqlite").touch()
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "no.sqlite"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("layer.conv").write_text(SPEC)
    Path("wrong.conv").write_text(WRONG)
    return tmp_path


def process(*arguments: str, **settings) -> subprocess.Popen:
    """The command line as a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(Path(convgen.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-m", "convgen", *arguments],
        stdout=settings.pop("stdout", subprocess.PIPE), stderr=subprocess.PIPE, text=True, env=environment, **settings,
    )  # fmt: skip


# ---- cache -------------------------------------------------------------------------------------


def test_cache_shows_place_and_size_and_clears(monkeypatch, tmp_path, capsys):
    where = tmp_path / "kept"
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(where))
    monkeypatch.delenv("CONVGEN_CACHE", raising=False)
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{where}: 0 entries, 0.0 MiB of at most 2048 MiB\n"
    Cache().put("0123abcd", {"kernel.cu": bytes(3 << 20)})
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{where}: 1 entry, 3.0 MiB of at most 2048 MiB\n"
    process("compile", "layer.conv", "--dump-after", "render").communicate()  # the grammar is kept
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"{where}: 2 entries removed, 3.1 MiB\n"
    assert Cache().get("0123abcd") is None and not [p for p in where.rglob("*") if p.is_file()]


def test_cache_that_cannot_be_cleared_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.delenv("CONVGEN_CACHE", raising=False)
    Cache().put("0123abcd", {"kernel.cu": b""})
    monkeypatch.setattr("os.rename", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert main(["cache", "clear"]) == 2
    assert "1 entry could not be removed\nhint: " in capsys.readouterr().err


def test_a_cache_that_is_no_folder_is_said(monkeypatch, capsys):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", "layer.conv")
    monkeypatch.delenv("CONVGEN_CACHE", raising=False)
    for command in (["cache"], ["cache", "clear"]):
        assert main(command) == 2
        assert capsys.readouterr().err == (
            "convgen: error: layer.conv: is not a folder\nhint: set CONVGEN_CACHE_DIR to a folder\n"
        )


def test_a_cache_that_others_can_write_to_is_said_to_be_unused(monkeypatch, tmp_path, capsys):
    where = tmp_path / "open"
    where.mkdir()
    where.chmod(0o777)
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(where))
    monkeypatch.delenv("CONVGEN_CACHE", raising=False)
    assert main(["cache"]) == 0
    assert f"{where} can be written by other users, so it is not used\nhint: " in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_said_to_be_empty_and_unused(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "sub" / "cache"))
    assert main(["cache"]) == 0
    assert not capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda place, mode: place != tmp_path)
    assert main(["cache"]) == 0
    assert "cannot be written, so it is not used\nhint: set CONVGEN_CACHE_DIR" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "no", "False", "off"])
def test_cache_may_be_off(value, monkeypatch, capsys):
    monkeypatch.setenv("CONVGEN_CACHE", value)
    for command in (["cache"], ["cache", "clear"]):
        assert main(command) == 0
        assert capsys.readouterr().out == f"the cache is off: CONVGEN_CACHE is {value}\n"


# ---- compile -----------------------------------------------------------------------------------


def test_compile_writes_source_cubin_and_manifest(capsys):
    assert main(["compile", "layer.conv", "-o", "a/b", "-D", "n=3"]) == 0
    assert sorted(p.name for p in Path("a/b").iterdir()) == sorted(
        f"{name}.{kind}" for name in ("first", "second") for kind in ("cu", "cubin", "json")
    )
    manifest = json.loads(Path("a/b/first.json").read_text())
    assert manifest["name"] == "first" and manifest["target"] == "sm_80"
    assert manifest["result"]["shape"] == [3, 8, 8, 16]
    assert "convgen_first" in Path("a/b/first.cu").read_text()
    assert Path("a/b/first.cubin").read_bytes().startswith(b"\x7fELF")
    out = capsys.readouterr().out
    assert "first" in out and "direct" in out and "wrote 6 files (.cu, .cubin, .json) for sm_80 to a/b" in out


def test_emit_and_only_choose_what_is_written():
    assert main(["compile", "layer.conv", "--emit", "ptx", "--only", "second", "-o", "out"]) == 0
    assert [p.name for p in Path("out").iterdir()] == ["second.ptx"]
    assert ".target sm_80" in Path("out/second.ptx").read_text()


DYNAMIC = SPEC.replace("pad 1", "pad 1  dynamic n").replace("sm_80", "sm_90a")
IMAGES = ["layer.conv", "--only", "first", "--images", "1,4096"]


def test_images_give_the_files_of_each_plan_and_one_of_all(capsys):
    Path("layer.conv").write_text(DYNAMIC)
    assert main(["compile", *IMAGES, "--emit", "cu,json,kernel", "-o", "out"]) == 0
    assert sorted(p.name for p in Path("out").iterdir()) == [
        "first.kernel", "first.n1.cu", "first.n1.json", "first.n4096.cu", "first.n4096.json"
    ]  # fmt: skip
    assert "first.n4096  fprop" in capsys.readouterr().out
    kernel = convgen.load("out/first.kernel")
    sources = [Path(f"out/first.n{kernel.class_at(n=n).manifest.written['n']}.cu") for n in (2, 4000)]
    assert [path.read_text() for path in sources] == [k.source for k in kernel.classes]
    assert sources[0].read_text() != sources[1].read_text()
    assert main(["compile", *IMAGES, "--dump-after", "plan"]) == 0
    assert set(re.findall(r"input x: f16\[n=(\d+)", capsys.readouterr().out)) == {"1", "4096"}


def test_explain_says_which_plan_a_number_of_images_takes(capsys):
    Path("layer.conv").write_text(DYNAMIC)
    assert main(["explain", *IMAGES[:-1], "1-3,4000"]) == 0
    table = capsys.readouterr().out.partition("Classes of sizes")[2]
    taken = re.findall(r"^ *([\d, -]+?)  +n=(\d+)", table, re.MULTILINE)
    assert taken == [("1-3", "1"), ("4000", "4000")]


def test_images_need_a_spec_that_leaves_them_to_calls(capsys):
    for command in ("compile", "explain", "run"):
        assert main([command, *IMAGES]) == 2
        assert "number of images is fixed\nhint: write `dynamic n` into the conv block" in capsys.readouterr().err
    assert not Path("first.json").exists()


def test_a_kind_is_written_once(capsys):
    assert main(["compile", "layer.conv", "--emit", "cu,cu", "--only", "second", "-o", "out"]) == 0
    assert "wrote 1 file (.cu) for sm_80" in capsys.readouterr().out


@pytest.mark.parametrize("only", [["--only", "first,second"], ["--only", "first", "--only", "second"]])
def test_only_takes_several(only, capsys):
    assert main(["check", "layer.conv", *only]) == 0
    assert "2 convolutions" in capsys.readouterr().out
    assert main(["check", "layer.conv", "--only", "first,secnd"]) == 2
    assert "did you mean `second`?" in capsys.readouterr().err


def test_only_takes_a_block_for_all_of_its_operators(capsys):
    Path("layer.conv").write_text(SPEC.replace("pad 1", "pad 1  op fprop dgrad"))
    for only, left in (("first", 2), ("first_dgrad", 1), ("second", 1)):
        assert main(["check", "layer.conv", "--only", only]) == 0
        assert capsys.readouterr().out.startswith(f"layer.conv: {left} convolution")
    assert main(["check", "layer.conv", "--only", "frist"]) == 2
    assert "did you mean `first`?" in capsys.readouterr().err


def test_target_and_strategy_override_the_spec():
    command = ["compile", "layer.conv", "--target", "sm_90a", "--strategy", "tma_im2col", "-o", "out"]
    assert main(command) == 0
    manifest = json.loads(Path("out/first.json").read_text())
    assert (manifest["target"], manifest["strategy"]) == ("sm_90a", "tma_im2col")


def test_a_second_compilation_gives_the_same_files_from_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["compile", "layer.conv", "-o", "cold"]) == 0
    monkeypatch.setattr("convgen.driver.load", None)  # a hit does without every pass
    assert main(["compile", "layer.conv", "-o", "warm"]) == 0
    for path in Path("cold").iterdir():
        assert path.read_bytes() == Path("warm", path.name).read_bytes()


def test_a_cache_hit_imports_none_of_the_large_libraries(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "cache"))
    code, imported = imported_by("compile", "layer.conv", "-o", "out")
    assert code == 0 and imported > {"sympy", "lark"}
    code, imported = imported_by("compile", "layer.conv", "-o", "out")
    assert code == 0 and imported <= {"convgen.planner", "sqlite3"}  # the database's stamp


def test_a_corrupt_cache_entry_is_made_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert main(["compile", "layer.conv", "-o", "cold"]) == 0
    for path in (tmp_path / "cache").rglob("*"):
        if path.is_file() and path.stat().st_size:
            path.write_bytes(path.read_bytes()[:-1])
    assert main(["compile", "layer.conv", "-o", "again"]) == 0
    for path in Path("cold").iterdir():
        assert path.read_bytes() == Path("again", path.name).read_bytes()


@pytest.mark.parametrize(
    "name, expected",
    [
        ("load", "filter w: f16[k=16, r=3, s=3, c=16]"),
        ("choose", "reason: named in the spec"),
        ("plan", "entry: convgen_first"),
        ("render", "__global__"),
    ],
)
def test_dump_after_prints_a_pass_and_writes_nothing(name, expected, capsys):
    before = set(Path().iterdir())
    assert main(["compile", "layer.conv", "--only", "first", "--dump-after", name]) == 0
    assert expected in capsys.readouterr().out
    assert set(Path().iterdir()) == before


def test_standard_input_is_a_spec():
    made = process("compile", "-", "--emit", "cu", "-o", "out", stdin=subprocess.PIPE)
    assert made.communicate(SPEC)[1] == "" and made.returncode == 0
    assert Path("out/first.cu").is_file()


def test_specs_with_the_same_convolution_do_not_overwrite_each_other(capsys, monkeypatch):
    monkeypatch.setattr(
        "convgen.requests.compile_all", lambda *_: pytest.fail("compiled before their names were compared")
    )
    Path("other.conv").write_text(SPEC)
    assert main(["compile", "layer.conv", "other.conv", "-o", "out"]) == 2
    assert "layer.conv and other.conv both have a convolution 'first'" in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.parametrize("again", ["layer.conv", "./layer.conv", "."])
def test_a_file_that_is_named_twice_is_read_once(again, capsys):
    Path("wrong.conv").unlink()
    assert main(["check", "layer.conv", again]) == 0
    assert capsys.readouterr().out == "layer.conv: 2 convolutions, no errors\n"


# ---- files -------------------------------------------------------------------------------------


@pytest.fixture
def process_on_a_full_disk(monkeypatch):
    """As `process`, where no file may grow beyond a size."""
    monkeypatch.setenv("CONVGEN_CACHE", "0")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # Python leaves half a file where it cannot write a whole one

    def start(size: int, *arguments: str) -> subprocess.Popen:
        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        return process(*arguments, preexec_fn=limit)

    return start


def test_a_full_disk_leaves_no_file_and_no_temporary(process_on_a_full_disk):
    Path("there").mkdir()
    for out in ("there", "new", "there/new/deep"):
        made = process_on_a_full_disk(1000, "compile", "layer.conv", "-o", out, "--emit", "cu,cubin")
        _, err = made.communicate()
        assert made.returncode == 2
        assert "cannot be written: File too large" in err and "Traceback" not in err
    assert not Path("new").exists() and list(Path("there").iterdir()) == []


def test_a_failed_set_leaves_the_old_files(process_on_a_full_disk):
    assert main(["compile", "layer.conv", "-o", "out", "--emit", "cu,json"]) == 0
    before = {p: p.read_bytes() for p in Path("out").iterdir()}
    smallest = min(map(len, before.values()))
    made = process_on_a_full_disk(smallest, "compile", "layer.conv", "-D", "n=4", "-o", "out", "--emit", "cu,json")
    made.communicate()
    assert made.returncode == 2
    assert {p: p.read_bytes() for p in Path("out").iterdir()} == before


def test_a_file_keeps_its_mode_and_a_link_leads_to_it(capsys):
    unformatted, formatted = "conv  a{input x:f16[n=1,c=1]", "conv a {"
    rest = "filter w:f16[k=1,c=1] output y:f16[n,k]}"
    Path("spec.conv").write_text(f"{unformatted} {rest}")
    Path("spec.conv").chmod(0o640)
    Path("link.conv").symlink_to("spec.conv")
    assert main(["fmt", "link.conv"]) == 0
    assert Path("spec.conv").read_text().startswith(formatted)
    assert Path("link.conv").is_symlink() and stat.S_IMODE(Path("spec.conv").stat().st_mode) == 0o640


def test_a_pipe_is_written_to_and_stays():
    os.mkfifo("pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(Path("pipe").read_bytes()), daemon=True)
    reader.start()
    assert main(["reproduce", "memory", "--out", "pipe"]) == 0
    reader.join(10)
    assert Path("pipe").is_fifo() and json.loads(read[0])


def test_a_device_is_no_tuning_database(capsys):
    assert main(["tune", "--db", "/dev/null", "--export", "new.sqlite"]) == 2
    assert capsys.readouterr().err.startswith("convgen: error: /dev/null: is a device or a pipe")


@pytest.mark.parametrize("taken", ["out", "out/first.cubin"])
def test_something_in_the_way_is_named(taken, capsys):
    if taken == "out":
        Path(taken).write_text("a file")
    else:
        Path(taken).mkdir(parents=True)
    assert main(["compile", "layer.conv", "-o", "out"]) == 2
    assert f"convgen: error: {taken}: " in capsys.readouterr().err
    if taken != "out":
        assert [p.name for p in Path("out").iterdir()] == ["first.cubin"]


def test_a_missing_cache_folder_warns_and_goes_on(monkeypatch, capsys):
    Path("file").write_text("")
    monkeypatch.setenv("CONVGEN_CACHE_DIR", "file/cache")
    assert main(["compile", "layer.conv", "-o", "out"]) == 0
    assert capsys.readouterr().err.startswith("convgen: warning: convgen's cache file/cache cannot be used")


# ---- check, explain ----------------------------------------------------------------------------


def test_a_warning_that_is_to_be_an_error_is_no_defect(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["compile", "layer.conv", "-o", "out", "--emit", "cu"]) == 1
    error = capsys.readouterr().err
    assert "error: convgen's cache" in error
    assert error.endswith("hint: PYTHONWARNINGS, or Python's -W, makes this warning an error\n")
    assert not Path("out").exists()


def test_check_reports_every_error_of_every_spec(capsys):
    assert main(["check", "layer.conv", "wrong.conv"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "layer.conv: 2 convolutions, no errors" in out
    assert "wrong.conv:" in out and "color" in out and "^" in out
    assert out.rstrip().endswith("wrong.conv: 3 errors")


def test_check_goes_on_behind_a_file_that_cannot_be_read(capsys):
    assert main(["check", "none.conv", "wrong.conv", "layer.conv"]) == 2
    out, err = capsys.readouterr()
    assert err.count("convgen: error: ") == 1 and "none.conv: no such file" in err
    assert "wrong.conv: 3 errors" in out and out.endswith("layer.conv: 2 convolutions, no errors\n")
    assert main(["check", "none.conv", "wrong.conv", "--format", "json"]) == 2
    assert {row["path"] for row in json.loads(capsys.readouterr().out)} == {"wrong.conv"}


#: What takes long to import, and what a cost model or a search for a plan would need.
HEAVY = (
    "sympy", "lark", "jinja2", "cupy", "numpy", "rich", "sqlite3", "convgen.kernels.parts.cost",
    "convgen.kernels.search", "convgen.planner",
)  # fmt: skip


def imported_by(*command: str) -> tuple[int, set[str]]:
    """Exit code of a command line in a process of its own, and which of the heavy modules it imported."""
    script = (
        f"import sys; from convgen.cli import main; code = main({list(command)}); "
        f"print(code, *(m for m in {HEAVY} if m in sys.modules))"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(convgen.__file__).parents[1])}
    shown = subprocess.check_output([sys.executable, "-c", script], env=environment, text=True)
    code, *found = shown.splitlines()[-1].split()
    return int(code), set(found)


@pytest.mark.costly
@pytest.mark.parametrize("strategy", ["auto", "direct", "tma_im2col"])
def test_what_was_checked_before_is_answered_without_large_libraries(strategy, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "cache"))
    command = ["check", "layer.conv", "--strategy", strategy]
    code = 1 if strategy == "tma_im2col" else 0  # which cannot serve sm_80
    assert main(command) == code
    fresh = capsys.readouterr()
    assert imported_by(*command) == (code, set())
    assert main(command) == code and capsys.readouterr() == fresh
    Path("layer.conv").write_text(SPEC.replace("n = 2", "n = 3"))
    assert imported_by(*command)[1] > {"lark"}


def test_that_auto_finds_a_strategy_is_known_without_formulas(monkeypatch):
    monkeypatch.setenv("CONVGEN_CACHE", "0")
    Path("layer.conv").write_text(SPEC.replace("direct", "auto").replace("second {", "second { op dgrad "))
    assert imported_by("check", "layer.conv") == (0, {"lark", "convgen.kernels.search"})


def test_errors_of_the_text_are_found_without_strategies(monkeypatch):
    """Those in the options of a strategy too."""
    monkeypatch.setenv("CONVGEN_CACHE", "0")
    Path("wrong.conv").write_text(WRONG.replace("direct", "tma_im2col { tile m=3  stagse 4 }"))
    assert imported_by("check", "wrong.conv") == (1, {"lark"})


def test_check_as_json_is_one_list(capsys):
    assert main(["check", "wrong.conv", "layer.conv", "--format", "json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert rows and {row["path"] for row in rows} == {"wrong.conv"}
    assert all(row["line"] and row["code"].startswith("E") for row in rows)
    assert main(["check", "layer.conv", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_check_says_why_no_strategy_serves_every_convolution(capsys):
    assert main(["check", "layer.conv", "--strategy", "tma_im2col"]) == 1
    out = capsys.readouterr().out
    for name in ("first", "second"):
        assert f"tma_im2col cannot serve {name}: target sm_80 has no wgmma" in out


def test_who_serves_instead_is_said_and_true(capsys):
    Path("layer.conv").write_text(SPEC.replace("pad 1", "pad 1 op dgrad").replace("direct", "auto"))
    assert main(["check", "layer.conv", "--only", "first", "--strategy", "depthwise"]) == 1
    out = capsys.readouterr().out
    assert out.count("error[E401]: depthwise cannot serve first: ") == 2
    (hint,) = re.findall(r"hint: (.*)", out)
    assert hint == "`implicit_gemm`, `im2col` and `direct` serve it"
    for name in ("implicit_gemm", "im2col", "direct"):
        assert main(["check", "layer.conv", "--only", "first", "--strategy", name]) == 0


@pytest.mark.parametrize("more", ["op wgrad dynamic n h w", "prologue { x = relu(x) }"])
def test_who_serves_instead_is_said_beside_what_would_help(more, capsys):
    Path("layer.conv").write_text(SPEC.replace("pad 1", f"pad 1 {more}").replace("direct", "auto"))
    assert main(["check", "layer.conv", "--only", "first", "--strategy", "implicit_gemm"]) == 1
    (hint,) = re.findall(r"hint: (.*)", capsys.readouterr().out)
    assert hint.endswith(", or take another strategy: `direct` serves it")
    assert main(["check", "layer.conv", "--only", "first", "--strategy", "direct"]) == 0


@pytest.mark.parametrize(
    ("conv", "strategy", "hint", "followed"),
    [
        (
            "input x: f16[n=2, w=14, c=1] filter w: f16[k=60, s=2] output y: f16[n, q, k] dynamic n",
            "implicit_gemm { kernel stem_wgmma }", "kernel stem_mma", "implicit_gemm { kernel stem_mma }",
        ),
        (
            "input x: f16[w=14, c=1, n=2] filter w: f16[k=60, s=2] output y: f16[n, q, k] dynamic n",
            "implicit_gemm { kernel stem_wgmma }", "`depthwise` and `direct` serve it", "direct",
        ),
        (
            "input x: f16[n=1, h=8, w=8, c=64] filter w: f16[k=64, r=3, s=3, c=64 of 72] output y: f16[n, p, q, k]",
            "tma_im2col { kernel tma_plain }",
            "pass a packed tensor, or leave `kernel tma_plain` out, or take another strategy: "
            "`tma_halo`, `implicit_gemm` and `direct` serve it",
            "tma_im2col",
        ),
        (
            "input x: f32[n=1, w=300, c=64] filter w: f32[k=64, s=127] output y: f32[n, q, k] groups 64",
            "depthwise { kernel depthwise_direct }",
            "a smaller tile, or take another strategy: `implicit_gemm`, `im2col` and `direct` serve it", "im2col",
        ),
        (
            "input x: f32[n=1, h=8, w=8, c=16] filter w: f32[k=16, r=3, s=3, c=16] output y: f32[n, p, q, k]",
            "winograd { product tma_im2col }", "product mma_gemm", "winograd { product mma_gemm }",
        ),
        (
            "input x: f32[n=1, h=8, w=8, c=16] filter w: f32[k=16, r=3, s=3, c=16] output y: f32[n, p, q, k]",
            "implicit_gemm { kernel mma_gemm tile m=40 }", "a multiple of 32",
            "implicit_gemm { kernel mma_gemm tile m=64 }",
        ),
    ],
)  # fmt: skip
def test_who_serves_in_place_of_a_kernel_does(conv, strategy, hint, followed, capsys):
    for given, code in ((followed, 0), (strategy, 1)):
        Path("layer.conv").write_text(f"conv a {{\n {conv}\n strategy {given} target sm_90a }}")
        assert main(["check", "layer.conv"]) == code
    assert re.findall("hint: (.*)", capsys.readouterr().out) == [hint]


@pytest.mark.parametrize(
    ("c", "settings", "options", "message"),
    [
        (2, "", "vector 16  tile p=3", "vector 16: 2 channels are aligned neighbors"),
        (72, "op dgrad", "band 8  vector 1", "vector 1: a thread's input channels take less than 4 bytes"),
        (72, "", "math mma  tile p=1 q=55", "math mma makes 8 or 16 columns per warp, not 55"),
    ],
)
def test_options_that_depthwise_has_no_threads_for_are_answered(c, settings, options, message, capsys):
    conv = (
        f"input x: f16[n=1, h=10, w=7, c={c}] filter w: f16[k={c}, c=1, r=3, s=3] output y: f16[n, p, q, k] groups {c}"
    )
    strategy = f"strategy depthwise {{ {options} }} target sm_90a"
    Path("layer.conv").write_text(f"conv a {{ {conv} {settings} pad h=1 w=(7, 1) dilation w=3 {strategy} }}")
    assert main(["check", "layer.conv"]) == 1
    assert f"depthwise cannot serve a: {message}" in capsys.readouterr().out


SMALL = "input x: f16[n=2, h=36, w=20, c=64] filter w: f16[k=32, r=3, s=5, c=64] output y: f16[n, p, q, k]"
DEPTHWISE = "input x: f32[n=1, h=8, w=7, c=64] filter w: f32[k=64, r=1, s=5] output y: f32[n, p, q, k] groups 64"
WIDE = "input x: f16[n=5, h=18, w=55, c=72] filter w: f16[k=72, r=1, s=5] output y: f16[n, p, q, k] groups 72"


@pytest.mark.parametrize(
    ("conv", "options", "message", "hint", "followed"),
    [
        (f"{SMALL} op wgrad", "tma_im2col { tile n=23 }", "tile n=23 does not split", "n=", "tma_im2col { tile n=64 }"),
        (
            SMALL, "implicit_gemm { kernel stem_wgmma stages 8 }", "of shared memory", "fewer stages",
            "implicit_gemm { kernel stem_wgmma stages 1 }",
        ),
        (
            WIDE, "depthwise { kernel depthwise_stream blocks 16 }", "no configuration with `blocks 16`", "leave it",
            "depthwise { kernel depthwise_stream }",
        ),
        (DEPTHWISE, "depthwise { vector 16 }", "4 channels are aligned", "vector 4 or less", "depthwise { vector 4 }"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_shown_with_what_can(conv, options, message, hint, followed, capsys):
    """Though the configuration that comes closest has others, which the user did not ask for."""
    for given, code in ((followed, 0), (options, 1)):
        Path("layer.conv").write_text(f"conv a {{\n {conv}\n strategy {given} target sm_90a }}")
        assert main(["check", "layer.conv"]) == code
    out = capsys.readouterr().out
    assert message in out and f"hint: {hint}" in out


ELSEWHERE = "kernel depthwise_direct"
THREE_EACH = "input x: f16[n=4, h=14, w=6, c=32] filter w: f16[k=96, r=7, s=2] output y: f16[n, p, q, k] groups 32"
PLANES = "input x: f16[n=1, h=9, w=10, c=16] filter w: f16[k=16, r=3, s=3] output y: f16[n, k, p, q] groups 16"
LONG = "input x: f32[n=1, w=300, c=64] filter w: f32[k=64, s=127] output y: f32[n, q, k] groups 64"


@pytest.mark.parametrize("options", ["", "stages 8"])
@pytest.mark.parametrize(
    ("conv", "message", "hint", "followed"),
    [
        (THREE_EACH, "no vectors of channels of 3 filters each", ELSEWHERE, f"depthwise {{ {ELSEWHERE} }}"),
        (PLANES, "channels innermost in y, unless x is f32", ELSEWHERE, f"depthwise {{ {ELSEWHERE} }}"),
        (LONG, "rows take 275 registers a thread", "`implicit_gemm`, `im2col` and `direct` serve it", "direct"),
    ],
)
def test_what_depthwise_stream_is_short_of_is_said(conv, message, hint, followed, options, capsys):
    for strategy, code in ((followed, 0), (f"depthwise {{ kernel depthwise_stream {options} }}", 1)):
        Path("layer.conv").write_text(f"conv a {{\n {conv}\n strategy {strategy} target sm_90a }}")
        assert main(["check", "layer.conv"]) == code
    out = capsys.readouterr().out
    assert message in out and re.findall("hint: (.*)", out) == [hint]


@pytest.mark.parametrize(("op", "result"), [("fprop", "y"), ("dgrad", "x"), ("wgrad", "w")])
def test_no_strategy_has_an_operand_that_the_target_does_not_convert(op, result, capsys):
    conv = "input x: f16[n=2, h=8, w=9, c=64] filter w: f16[k=32, r=3, s=3, c=64] output y: f16[n, p, q, k]"
    epilogue = f"epilogue {{ operand z: e4m3[] {result} = acc * z }}"
    Path("layer.conv").write_text(f"conv a {{ {conv} op {op} {epilogue} target sm_80 }}")
    assert main(["check", "layer.conv"]) == 1
    assert re.search(
        r"implicit_gemm.* cannot serve a: target sm_80 does not convert e4m3 \(z\)", capsys.readouterr().out
    )


def test_what_several_strategies_say_is_said_once(capsys):
    Path("layer.conv").write_text(SPEC.replace("f16", "e4m3").replace("direct", "auto"))
    assert main(["check", "layer.conv", "--only", "first"]) == 1
    out = capsys.readouterr().out
    assert "tma_im2col and tma_halo cannot serve first: target sm_80 has no wgmma" in out
    assert (
        "depthwise, implicit_gemm, im2col and direct cannot serve first: target sm_80 does not convert e4m3 (x, w, y)"
    ) in out
    reasons = re.findall(r"cannot serve first: (.*)", out)
    assert len(reasons) == len(set(reasons))


def test_explain_shows_formulas_roofline_strategies_and_plan(capsys):
    assert main(["explain", "layer.conv", "--only", "first"]) == 0
    out = capsys.readouterr().out
    for title in ("Roofline", "Index formulas", "Strategies on sm_80", "Plan for sm_80"):
        assert f"\n{title}" in out
    assert "gemm_m % 8" in out and "second" not in out


@pytest.mark.parametrize(("words", "name"), [("H100", "NVIDIA H100 80GB HBM3"), ("geforce rtx-4090", "RTX 4090")])
def test_explain_draws_the_roofline_of_another_gpu(words, name, capsys):
    """Of the plan's own it says which share the estimate is, of another not."""
    assert main(["explain", "layer.conv", "--only", "first", "--strategy", "implicit_gemm", "--gpu", words]) == 0
    out = capsys.readouterr().out
    assert name in out and "of the roofline" not in out
    assert re.search(r"estimated at .* us on NVIDIA A100-SXM4-80GB\.", out)


@pytest.mark.parametrize("words", ["V100", ""])
def test_explain_lists_the_gpus_that_it_knows(words, capsys):
    assert main(["explain", "layer.conv", "--gpu", words]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert all(str(gpu) in err for gpu in GPUS.values())


def test_explain_lists_the_gpus_that_a_name_may_mean(capsys):
    assert main(["explain", "layer.conv", "--gpu", "rtx"]) == 2
    err = capsys.readouterr().err
    assert "'rtx' names several GPUs" in err and "RTX A6000" in err and "H200" not in err


def test_explain_still_explains_where_the_strategy_cannot_serve(capsys):
    assert main(["explain", "layer.conv", "--only", "first", "--strategy", "tma_im2col"]) == 1
    out, err = capsys.readouterr()
    assert "Index formulas" in out and "Plan for" not in out
    assert "has no wgmma" in out and "E401" in err


# ---- how it ends -------------------------------------------------------------------------------


def test_without_arguments_it_shows_what_there_is(capsys):
    assert main([]) == 2
    err = capsys.readouterr().err
    for name, summary in COMMANDS.items():
        assert name in err and summary in err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_and_version(arguments, capsys):
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == "" and ("examples:" in out or out == f"convgen {convgen.__version__}\n")


def test_examples_of_the_help_are_commands_that_parse(capsys):
    from importlib import import_module

    from convgen.cli.arguments import Parser

    for name in COMMANDS:
        module = import_module(f"convgen.cli.{name}")
        lines = [line.strip() for line in (module.__doc__ or "").split("examples:")[1].splitlines() if line.strip()]
        assert lines
        for line in lines:
            assert line.startswith(f"convgen {name}")
            parser = Parser()
            module.configure(parser)
            parser.parse_args(line.split("   ")[0].split()[2:])


def test_a_defect_asks_for_a_report_and_shows_a_traceback_on_demand(monkeypatch, capsys):
    def broken(*_):
        raise KeyError("surprise")

    monkeypatch.setattr("convgen.driver.load", broken)
    assert main(["explain", "layer.conv"]) == 70
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "KeyError: 'surprise'" in err and "CONVGEN_DEBUG=1" in err
    monkeypatch.setenv("CONVGEN_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["explain", "layer.conv"])


@pytest.mark.parametrize(("name", "code"), [("nosuch", 1), ("convgen.nosuch", 70)])
def test_a_missing_dependency_is_no_defect(name, code, monkeypatch, capsys):
    monkeypatch.setattr("convgen.driver.load", lambda _: importlib.import_module(name))
    assert main(["explain", "layer.conv"]) == code
    said = f"error: the Python module '{name}' is not installed\nhint: in a checkout, "
    assert (said in capsys.readouterr().err) == (code == 1)


def test_an_interrupt_is_quiet():
    # a shell starts what runs in the background with interrupts ignored, and children inherit that
    listening = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    made = process("check", "-", stdin=subprocess.PIPE, preexec_fn=listening)
    made.stdin.write("#" * 100_000)  # more than a pipe holds: who wrote it all knows that it is being read
    made.stdin.flush()
    made.send_signal(signal.SIGINT)
    out, err = made.communicate()
    assert (made.returncode, out, err) == (130, "", "")


def test_who_ends_a_run_finds_no_temporary_files(monkeypatch, tmp_path):
    compiler, temporary = tmp_path / "compiler", tmp_path / "temporary"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\nkill -TERM $PPID\nexec sleep 600\n')
    compiler.chmod(0o755)
    temporary.mkdir()
    monkeypatch.setenv("CONVGEN_CXX", str(compiler))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("CONVGEN_CACHE", "0")
    made = process("run", "layer.conv", "--device", "emulate")
    assert (made.communicate()[1], made.returncode, list(temporary.iterdir())) == ("", 130, [])


def test_an_interrupt_while_modules_are_loaded_is_quiet(monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.__import__", interrupted)
    assert entry() == 130


def test_an_interrupt_of_which_c_code_makes_another_error_is_quiet(monkeypatch, capsys):
    def numpy_is_loaded(_: object) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ImportError("numpy._core.multiarray failed to import")

    monkeypatch.setattr("convgen.driver.load", numpy_is_loaded)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["explain", "layer.conv"]) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == ""


def test_nobody_reading_is_quiet():
    read, write = os.pipe()
    os.close(read)
    made = process("explain", "layer.conv", stdout=write)
    os.close(write)
    assert made.communicate()[1] == "" and made.returncode == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["explain layer.conv", "--help", "--version", "compile --help"])
def test_a_full_standard_output_is_an_error_of_one_line(command):
    with open("/dev/full", "w") as full:
        made = process(*command.split(), stdout=full)
    err = made.communicate()[1]
    assert made.returncode == 2
    assert err == "convgen: error: standard output cannot be written: No space left on device\n"


def test_a_terminal_gets_colors(tmp_path):
    pty = pytest.importorskip("pty")
    parent, child = pty.openpty()
    made = process("explain", "layer.conv", "--only", "first", stdout=child)
    os.close(child)
    shown = everything(parent)
    assert made.wait() == 0
    assert b"\x1b[1m" in shown and b"Index formulas" in shown
