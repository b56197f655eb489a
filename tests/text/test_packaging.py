"""The sdist and the wheel made from it: whole, installable, and at work outside of the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import convgen
from convgen import driver

ROOT = Path(__file__).parents[2]
SPEC = """\
conv packaged {
  input  x: f16[n=1, h=6, w=6, c=16]
  filter w: f16[k=16, r=3, s=3, c=16]
  output y: f16[n, p, q, k]
  pad 1
  strategy tma_im2col { tile m=64 n=16 k=16 stages 2 }
  target sm_90a
}
"""


def run(*command: object, **settings) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it and nothing else."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory) -> Path:
    """The commands' folder of an environment with the wheel; its dependencies are this environment's."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", vars=paths))
    dependencies = Path(sysconfig.get_path("purelib"))
    (site / "dependencies.pth").write_text(f"{dependencies}\n")
    if (dependencies / "nvidia").is_dir():  # NVIDIA's libraries are looked for in the environment's own folder
        (site / "nvidia").symlink_to(dependencies / "nvidia")
    commands = Path(sysconfig.get_path("scripts", "venv", vars=paths))
    run(sys.executable, "-m", "pip", "--python", commands / "python", "install", "--no-deps", "--no-index", built[1])
    return commands


def test_versions_agree(built):
    for path in built:
        assert path.name.startswith(f"convgen-{convgen.__version__}")


def test_extras_that_messages_name_exist(monkeypatch):
    from convgen.runtime import cublas, errors

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {e for p in (ROOT / "convgen").rglob("*.py") for e in re.findall(r"convgen\[(\w+)\]", p.read_text())}
    assert named and named <= extras.keys()

    pytest.importorskip("cupy")
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", None)  # as where it is not installed
    cublas._library.cache_clear()
    with pytest.raises(errors.DriverError, match=re.escape("pip install 'convgen[cublas13]'")):
        cublas._library()


def test_extras_of_one_cuda_version_go_together():
    from convgen.runtime import nvrtc_library

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {extra: {re.split(r"[<>=\[]", row)[0] for row in rows} for extra, rows in extras.items()}
    assert names["cuda12"] == {"cupy-cuda12x", "nvidia-cuda-nvrtc-cu12"}
    assert names["cuda13"] == {"cupy-cuda13x"} | names["nvrtc"]
    oldest = ".".join(map(str, nvrtc_library.OLDEST))
    assert f"nvidia-cuda-nvrtc-cu12>={oldest},<13" in extras["cuda12"]
    assert "convgen[cuda13]" in extras["dev"]


def test_readme_installs_what_its_commands_need_and_no_developer_s_tools():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    installed = re.findall(r"(?:install|or) (?:-e )?`?'(?:\.|convgen)\[([\w,]+)\]'", readme)
    assert installed[0] == "nvrtc" and set(installed) <= extras.keys()
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").split("| extra |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras.keys() - {"dev", "ci"}


@pytest.mark.parametrize("folder", ["templates", "grammar", "specs"])
def test_the_wheel_has_every_file_that_is_read_at_run_time(built, folder):
    with zipfile.ZipFile(built[1]) as wheel:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file():
                name = f"convgen/_data/{path.relative_to(ROOT).as_posix()}"
                assert wheel.read(name) == path.read_bytes(), name


def test_the_wheel_has_the_whole_package_and_nothing_else(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = set(wheel.namelist())
    kept = {p for p in (ROOT / "convgen").rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert {p.relative_to(ROOT).as_posix() for p in kept} <= names
    assert "convgen/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"convgen", f"convgen-{convgen.__version__}.dist-info"}


def test_the_sdist_has_what_tests_and_readers_need(built):
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "LICENSE",
        "pyproject.toml",
        ".ci/run",
        "tests/conftest.py",
    ]
    wanted += [p.relative_to(ROOT).as_posix() for p in (ROOT / "generated").iterdir()]
    assert not set(wanted) - names


def test_an_archive_is_refused_in_a_sentence(built, tmp_path):
    """Python imports from a wheel as from any zip file; the templates in there are no files."""
    _, wheel = built
    (tmp_path / "layer.conv").write_text(SPEC)
    code = "import convgen\ntry: convgen.compile('layer.conv')\nexcept convgen.ConvgenError as e: print(e)"
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    shown = run(sys.executable, "-c", code, cwd=tmp_path, env=environment)
    assert shown.startswith(f"convgen cannot run from an archive: {wheel / 'convgen'} is no folder\nhint: install it")
    command = [sys.executable, "-m", "convgen", "check", "layer.conv"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 1 and "cannot run from an archive" in done.stderr and "internal" not in done.stderr


def test_the_installed_command_makes_the_same_source(installed, tmp_path):
    spec = tmp_path / "layer.conv"
    spec.write_text(SPEC)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    where = run(installed / "python", "-c", "import convgen; print(convgen.__file__)", cwd=tmp_path, env=clean)
    assert not Path(where.strip()).is_relative_to(ROOT)
    run(installed / "convgen", "compile", "layer.conv", "-o", "out", cwd=tmp_path, env=clean)
    (here,) = driver.load(driver.Spec(SPEC))
    assert (tmp_path / "out" / "packaged.cu").read_text() == here.source
    assert (tmp_path / "out" / "packaged.cubin").stat().st_size


def test_the_installed_command_points_to_the_specs_that_it_brings(installed, tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [installed / "convgen", "check", "specs/resnet50.conv"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean)
    assert done.returncode == 2
    hint = done.stderr.split("hint: ")[1].strip().strip("`").removeprefix("did you mean `").removesuffix("`?")
    run(installed / "convgen", "check", hint, "--only", "conv1", cwd=tmp_path, env=clean)


def test_the_page_s_python_is_strictly_typed_in_a_user_s_project(installed, tmp_path):
    readme = (ROOT / "docs" / "from_python.md").read_text(encoding="utf-8")
    example = "\n".join(re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE))
    (tmp_path / "example.py").write_text(f"{example}\nreveal_type(kernel)\nreveal_type(convgen.compile_all(''))\n")
    (tmp_path / "mistakes.py").write_text("import convgen\nconvgen.compyle('')\nconvgen.compile('', strategy=3)\n")
    # Rich is in no public type, and brings IPython where that is installed: four fifths of the time
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-rich.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", installed / "python", "."]
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert re.findall(r"^example.py:\d+: (.*)$", done.stdout, re.MULTILINE) == [
        'note: Revealed type is "convgen.runtime.kernel.Kernel"',
        'note: Revealed type is "dict[str, convgen.runtime.kernel.Kernel]"',
    ]
    assert re.findall(r"^mistakes.py:(\d+): error: .*\[(.*)\]$", done.stdout, re.MULTILINE) == [
        ("2", "attr-defined"), ("3", "arg-type"),
    ]  # fmt: skip
