"""What all tests share: reproducible random data, and golden files.

Data that a test draws, by hypothesis or from the fixture `seed`, is the same in every run, on every machine:

    pytest --hypothesis-seed=7  draws other data, the same for each 7; tests/repeat.py does it again and again
    pytest -m randomized        runs the tests that draw, and no others

A sample runs by default: of a test in tests/nvrtc or tests/emulated, or one that is marked `costly`, the first case and
about a sixteenth of the others; of what hypothesis draws, a quarter.  tests/gpu runs whole, and so does what -k, --lf
or a test's name selects:

    pytest --every-case         runs everything

Golden files are expected texts that are kept beside the tests:

    pytest --update-goldens     rewrites them, lists what changed, and fails, so that nobody updates unseen

A test takes the fixture `golden` and calls `golden.check(path, text)`; `golden.only(folder, names)` finds
files that no test checks any more.
"""

from __future__ import annotations

import atexit
import difflib
import gc
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

T = TypeVar("T")

OPTION = "--update-goldens"
SEED_OPTION = "--hypothesis-seed"
EVERY_OPTION = "--every-case"
#: Of so many cases of a test, or examples of hypothesis, the sample has one.
CASES, EXAMPLES = 16, 4
#: Whether a sample of the test runs.
SAMPLED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(OPTION, action="store_true", help="rewrite golden files, list what changed, and fail")
    parser.addoption(EVERY_OPTION, action="store_true", help="run all cases of all tests instead of a sample")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION) and os.environ.get("CI"):
        raise pytest.UsageError(f"{OPTION} is for people: CI does not update goldens")
    config.addinivalue_line("markers", "randomized: draws data; --hypothesis-seed decides which")
    config.addinivalue_line(
        "markers", "costly: takes long: a sample of its cases runs by default, or nothing where it has none"
    )
    config.addinivalue_line("markers", "long: takes many seconds, and begins before the others")
    _draw_by(config.getoption(SEED_OPTION))
    _spare_the_processor()
    # the user's settings and tuning decide nothing here, in this process or those that it starts
    for name in ("CONVGEN_CACHE", "CONVGEN_COMMIT", "CONVGEN_DEBUG", "CONVGEN_EMULATOR_DEBUG"):
        os.environ.pop(name, None)
    folder = tempfile.TemporaryDirectory(prefix="convgen-tests-")
    config.add_cleanup(folder.cleanup)
    tuned = Path(folder.name) / "tuning.sqlite"
    tuned.touch()  # as SQLite has an empty database: there is a warning of one that is not there
    os.environ["CONVGEN_TUNING_DB"] = str(tuned)
    kept = getattr(config, "cache", None)  # none under `-p no:cacheprovider`
    os.environ.setdefault("CONVGEN_CACHE_DIR", str(kept.mkdir("convgen") if kept else Path(folder.name) / "cache"))
    os.environ["CUPY_CACHE_DIR"] = str(Path(folder.name) / "cupy")


def _spare_the_processor() -> None:
    """Tests run on all cores already, and keep most of what they make: plans, formulas, modules."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # tests start a hundred Pythons: each would compile every module
    gc.set_threshold(2_000_000, 20, 100)  # the default looks through all of it again and again: a tenth of the time
    for library in ("OPENBLAS", "OMP", "MKL"):  # read when NumPy is imported, which is later; threads of theirs spin
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    # Inductor compiles five programs to learn what vectors the processor has, more than tests have it compile
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
    # and optimizes what runs once or twice
    os.environ.setdefault("TORCHINDUCTOR_DEBUG_COMPILE", "1")


def _draw_by(seed: str | None) -> None:
    """Make hypothesis draw the same data in each run, or by the given seed; the clock and old runs have no say."""
    settings.register_profile(
        "tests",
        derandomize=seed is None,
        database=None,
        deadline=None,
        # too_slow is judged by the clock, and no fixture here is changed by an example
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("tests")


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marker
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not any(config.getoption(option, False) for option in (EVERY_OPTION, OPTION, "-k", "--lf")):
        _take_sample(config, items)
    for item in items:
        by_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        given = getattr(getattr(item, "callspec", None), "params", ())
        if by_hypothesis or ("seed" in getattr(item, "fixturenames", ()) and "seed" not in given):
            item.add_marker("randomized")
    items.sort(key=lambda item: item.get_closest_marker("long") is None)  # at the end, one core would wait for them


def _take_sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves of each sampled test the first case, and others by a hash: what lies side by side, such as the same golden
    in several tests, is not left out together."""
    arguments = [argument.partition("::") for argument in config.args]
    named = tuple(f"{os.path.abspath(path)}::{test}" for path, _, test in arguments if test)
    seen: set[str] = set()
    left: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        first = test not in seen
        seen.add(test)
        tier = item.path.parent.name
        if tier == "gpu" or f"{item.path}::{item.nodeid.partition('::')[2]}".startswith(named):
            left.append(item)
            continue
        item.stash[SAMPLED] = True
        if first:
            _draw_less(item)
        if "[" not in item.nodeid:  # a module's marker is about its tests' cases
            leave = all(mark.name != "costly" for mark in item.own_markers)
        else:  # in these two folders, each case compiles a kernel
            costly = tier in ("nvrtc", "emulated") or item.get_closest_marker("costly")
            leave = first or not costly or _drawn(item.nodeid)
        (left if leave else deselected).append(item)
    items[:] = left
    config.hook.pytest_deselected(items=deselected)


def _drawn(name: str) -> bool:
    return zlib.crc32(name.encode()) % CASES == 0


def _draw_less(item: pytest.Item) -> None:
    """Also where a test says itself how many.  Its settings lie where hypothesis's own plugin finds them."""
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)  # a method is made anew each time
    if drawn := getattr(test, "_hypothesis_internal_use_settings", None):
        test._hypothesis_internal_use_settings = settings(drawn, max_examples=-(-drawn.max_examples // EXAMPLES))


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and tests stay: nobody who collects garbage need look through them


def pytest_sessionfinish() -> None:
    gc.freeze()  # the process ends: pytest would look through all that is left, ten times
    atexit.register(gc.unfreeze)  # Python itself does so once more, or libraries report leaks


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """32 bits for a random generator: other ones in each test, the same ones in each run."""
    return zlib.crc32(f"{request.node.nodeid} {request.config.getoption(SEED_OPTION)}".encode())


@pytest.fixture
def some(request: pytest.FixtureRequest) -> Callable[[Iterable[T]], list[T]]:
    """Of what a test goes through in one case: all, or where a sample runs, the first and about every sixteenth."""
    if not request.node.stash.get(SAMPLED, False):
        return list
    return lambda things: [thing for i, thing in enumerate(things) if i == 0 or _drawn(str(thing))]


@pytest.fixture
def own_garbage() -> Iterator[None]:
    """Garbage is collected of what the test makes alone: of all that others have made, it takes a second."""
    gc.freeze()
    yield


@pytest.fixture
def torch_draws(seed: int) -> None:
    """torch's random tensors are the same in each run, whichever tests came before."""
    pytest.importorskip("torch").manual_seed(seed)


class Golden:
    """Compares texts with files; in an update it writes them and remembers what changed."""

    def __init__(self, update: bool) -> None:
        self._update = update
        self.changed: list[str] = []

    def check(self, path: Path, text: str) -> None:
        """Fails where the file's content is not the text, or writes it."""
        expected = path.read_text(encoding="utf-8") if path.exists() else None
        if text == expected:
            return
        if self._update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
            self.changed.append(f"{path}: {'new' if expected is None else 'changed'}")
        elif expected is None:
            pytest.fail(f"{path} is missing; {OPTION} writes it", pytrace=False)
        else:
            lines = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path), "now", lineterm="")
            pytest.fail("\n".join([*lines, f"{OPTION} accepts the change"]), pytrace=False)

    def only(self, folder: Path, names: Iterable[str]) -> None:
        """Fails where the folder holds other files than the named ones, or removes those."""
        known = set(names)
        orphans = sorted(p for p in folder.rglob("*") if p.is_file() and p.relative_to(folder).as_posix() not in known)
        if orphans and not self._update:
            listed = "\n".join(map(str, orphans))
            pytest.fail(f"no test checks these files; {OPTION} removes them:\n{listed}", pytrace=False)
        for path in orphans:
            path.unlink()
            self.changed.append(f"{path}: removed")


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Golden files of a test; after an update the test fails with the list of what it rewrote."""
    found = Golden(request.config.getoption(OPTION))
    yield found
    if found.changed:
        pytest.fail(
            "goldens were rewritten; look at them before you commit:\n" + "\n".join(found.changed), pytrace=False
        )
