"""The cache keeps what it is given, gives back nothing else, and is never in the way."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import convgen
from convgen import cache
from convgen.cache import Cache, CacheWarning
from convgen.runtime import artifacts
from convgen.turns import turn

KEY = "request-0123abcd"
FILES = {"kernel.cu": b"source", "kernel.cubin": bytes(range(256)), "empty": b""}


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch):
    monkeypatch.setattr(cache, "_warned", set())
    monkeypatch.delenv("CONVGEN_CACHE", raising=False)


def entry_files(root):
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_gives_back_what_it_was_given(tmp_path):
    assert Cache(tmp_path).get(KEY) is None
    Cache(tmp_path).put(KEY, FILES)
    assert Cache(tmp_path).get(KEY) == FILES
    assert Cache(tmp_path).get("0" + KEY) is None
    Cache(tmp_path).put(KEY, {"other": b""})
    assert Cache(tmp_path).get(KEY) == FILES
    assert not list((tmp_path / "staging").iterdir())


def test_sums_are_those_of_sha256sum(tmp_path):
    Cache(tmp_path).put(KEY, FILES)
    (sums,) = tmp_path.rglob("SHA256SUMS")
    check = subprocess.run(["sha256sum", "--check", "--strict", sums.name], cwd=sums.parent, capture_output=True)
    assert check.returncode == 0, check.stderr


def damage(path, how: str, at: float) -> None:
    data = bytearray(path.read_bytes())
    place = int(at * len(data))
    if how == "flip" and data:
        data[min(place, len(data) - 1)] ^= 1
    elif how == "truncate" and data:
        del data[place:]
    elif how == "grow":
        data.append(10)
    path.unlink()
    if how != "remove":
        path.write_bytes(data)


@given(st.data(), st.sampled_from(["flip", "truncate", "grow", "remove"]), st.floats(0, 0.999))
def test_damage_anywhere_is_noticed_and_mended(tmp_path_factory, data, how, at):
    root = tmp_path_factory.mktemp("cache")
    kept = Cache(root)
    kept.put(KEY, FILES)
    path = data.draw(st.sampled_from(entry_files(root)))
    before = path.read_bytes()
    damage(path, how, at)
    damaged = not path.exists() or path.read_bytes() != before
    assert kept.get(KEY) == (None if damaged else FILES)
    kept.put(KEY, FILES)
    assert kept.get(KEY) == FILES


def test_an_extra_file_counts_as_damage(tmp_path):
    Cache(tmp_path).put(KEY, FILES)
    (entry_files(tmp_path)[0].parent / "more").touch()
    assert Cache(tmp_path).get(KEY) is None


WORKER = """
import contextlib, pathlib, random, sys
from convgen.cache import Cache
cache, generator = Cache(pathlib.Path(sys.argv[1])), random.Random(sys.argv[2])
entries = {f"key-{i:02x}": {"a": b"%d" % i * 1000, "b": b"%d" % i} for i in range(4)}
for key, files in entries.items():  # so that a hit is certain: nobody clears or damages an entry before a hit
    cache.put(key, files)
hits = 0
for _ in range(150):
    key, files = generator.choice(list(entries.items()))
    found = cache.get(key)
    assert found in (None, files), found
    hits += found is not None
    act = generator.random()
    if found is None:
        cache.put(key, files)
    elif act < 0.1:
        cache.clear()
    elif act < 0.2:
        with contextlib.suppress(OSError):
            pathlib.Path(sys.argv[1], key[-2:], key, "a").write_bytes(b"damaged")
print(hits)
"""


def test_many_processes_at_once(tmp_path, seed):
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WORKER, str(tmp_path), f"{seed}-{i}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(6)
    ]
    hits = 0
    for worker in workers:
        out, errors = worker.communicate()
        assert worker.returncode == 0, errors
        hits += int(out)
    assert hits > 0


def test_a_killed_writer_leaves_no_entry(tmp_path):
    code = "import os, pathlib, sys\nfrom convgen import cache\n" + (
        "os.rename = lambda *a: os._exit(9)\ncache.Cache(pathlib.Path(sys.argv[1])).put('key-ab', {'a': b'a'})\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == 9
    assert Cache(tmp_path).get("key-ab") is None
    Cache(tmp_path).put("key-ab", {"a": b"a"})
    assert Cache(tmp_path).get("key-ab") == {"a": b"a"}


def test_the_program_s_own_line_is_warned_of(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(CacheWarning) as found:
        convgen.compile("conv a { input x: f16[n=1, c=8] filter w: f16[k=8, c=8] output y: f16[n, k] strategy direct }")
    assert [w.filename for w in found] == [__file__]


def test_unusable_folder_warns_once_and_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    unusable = Cache(tmp_path / "file" / "cache")
    with pytest.warns(CacheWarning, match="CONVGEN_CACHE_DIR"):
        unusable.put(KEY, FILES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Cache(tmp_path / "file" / "cache").put(KEY, FILES)
        assert unusable.get(KEY) is None


@pytest.mark.parametrize("last", ["00", "ab"])
def test_a_folder_whose_name_is_too_long_is_done_without(last):
    """Whatever the key: those that end in 00 look at every entry."""
    with pytest.warns(CacheWarning, match="CONVGEN_CACHE_DIR"):
        Cache(Path(300 * "x" + last)).put(f"key-{last}", FILES)


def test_a_file_in_the_folder_s_place_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(CacheWarning, match=r"\(it is not a folder\).*CONVGEN_CACHE_DIR"):
        Cache(tmp_path / "file").put(KEY, FILES)


def test_full_disk_warns_and_leaves_nothing(tmp_path):
    code = (
        "import pathlib, resource, sys, warnings\n"
        "from convgen.cache import Cache, CacheWarning\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "cache = Cache(pathlib.Path(sys.argv[1]))\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    cache.put('key-ab', {'a': bytes(1000)})\n"
        "assert [w.category for w in seen] == [CacheWarning], seen\n"
        "assert cache.get('key-ab') is None\n"
    )
    # -B, for Python leaves half a file of byte code where it cannot write a whole one
    run = subprocess.run([sys.executable, "-B", "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert not entry_files(tmp_path)


def test_environment_chooses_the_folder_and_turns_it_off(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVGEN_CACHE_DIR", str(tmp_path / "chosen"))
    Cache().put(KEY, FILES)
    assert Cache(tmp_path / "chosen").get(KEY) == FILES
    monkeypatch.setenv("CONVGEN_CACHE", "0")
    assert Cache().get(KEY) is None
    Cache().put("off-00", FILES)
    monkeypatch.delenv("CONVGEN_CACHE")
    assert Cache().get("off-00") is None


def test_the_least_recently_used_go_first(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT_BYTES", 3500)
    kept = Cache(tmp_path)
    keys = [f"key-{i}1" for i in range(3)]
    for age, key in enumerate(keys):
        kept.put(key, {"a": bytes(1000)})
        (path,) = tmp_path.glob(f"*/{key}")
        os.utime(path, (time.time() - 100 + age,) * 2)
    assert kept.get(keys[0])  # now the most recent
    kept.put("key-f00", {"a": bytes(1000)})
    kept.put("key-e00", {"a": bytes(1000)})
    assert [kept.get(key) is not None for key in (*keys, "key-f00", "key-e00")] == [True, False, False, True, True]


def test_clear(tmp_path):
    for i in range(5):
        Cache(tmp_path).put(f"key-{i:02x}", FILES)
    assert Cache(tmp_path).extent() == (5, sum(p.stat().st_size for p in entry_files(tmp_path)))
    Cache(tmp_path).clear()
    assert Cache(tmp_path).extent() == (0, 0)
    assert not entry_files(tmp_path)


def test_what_is_made_while_a_cache_is_cleared_is_no_failure(tmp_path, monkeypatch):
    Cache(tmp_path).put("key-00", FILES)
    rename = os.rename

    def renamed(*names):
        rename(*names)
        with monkeypatch.context() as original:
            original.setattr(os, "rename", rename)
            Cache(tmp_path).put("key-01", FILES)

    monkeypatch.setattr(os, "rename", renamed)
    assert Cache(tmp_path).clear() == 0
    assert Cache(tmp_path).extent()[0] == 1


def test_clear_and_prune_leave_the_user_s_files(tmp_path, monkeypatch):
    """CONVGEN_CACHE_DIR may name a folder that has more than the cache: this checkout, or what git keeps."""
    own = ["templates/direct/kernel.cu.j2", "grammar/conv.lark", "ab/cdef", "ab/folder/file", "staging/notes"]
    for name in own:
        path = tmp_path / name
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
        os.utime(path, (0, 0))
        os.utime(path.parent, (0, 0))
    monkeypatch.setattr(cache, "LIMIT_BYTES", 1)
    Cache(tmp_path).put("key-ab", FILES)
    Cache(tmp_path).put("key-a00", FILES)  # a put that prunes
    assert Cache(tmp_path).extent()[0] < 2
    Cache(tmp_path).clear()
    assert Cache(tmp_path).extent() == (0, 0)
    assert entry_files(tmp_path) == sorted(tmp_path / name for name in own)


def test_request_keys_differ_with_every_fact(monkeypatch):
    facts = {"text": "conv a {}", "defines": {"n": 1}, "target": None, "strategy": "auto"}
    keys = {artifacts.request_key(**facts)}
    assert artifacts.request_key(**dict(reversed(facts.items()))) in keys
    for change in ({"text": "conv b {}"}, {"defines": {"n": 2}}, {"target": "sm_90a"}, {"strategy": "direct"}):
        keys.add(artifacts.request_key(**facts | change))
    monkeypatch.setattr(artifacts, "schema_digest", lambda: "of another convgen")
    keys.add(artifacts.request_key(**facts))
    assert len(keys) == 6


def test_schema_digest_sees_a_changed_file(tmp_path, monkeypatch):
    for name in ("templates", "grammar"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(artifacts, "directory", lambda name: tmp_path / name)
    template = tmp_path / "templates" / "a.j2"
    template.write_text("one")
    digest = artifacts.schema_digest.__wrapped__
    first = digest()
    assert digest() == first
    template.write_text("two")
    os.utime(template, ns=(0, 0))
    second = digest()
    (tmp_path / "grammar" / "__pycache__").mkdir()
    (tmp_path / "grammar" / "__pycache__" / "a.pyc").touch()
    assert digest() == second
    (tmp_path / "grammar" / "b.lark").touch()
    assert len({first, second, digest()}) == 3


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
@pytest.mark.parametrize("below", [".", "cd", f"cd/{KEY}"])
def test_what_others_may_write_is_not_used(tmp_path, mode, below):
    """A cubin runs on the GPU and an emulated kernel in this process: nobody else may put one there."""
    root = tmp_path / "cache"
    Cache(root).put(KEY, FILES)
    (root / below).chmod(mode)
    with pytest.warns(CacheWarning, match=r"can be written by other users.*CONVGEN_CACHE_DIR"):
        assert Cache(root).get(KEY) is None
    if below != f"cd/{KEY}":
        Cache(root).put("other-cd", FILES)
        assert not (root / "cd" / "other-cd").exists()
    (root / below).chmod(0o755)
    assert Cache(root).get(KEY) == FILES


def test_what_belongs_to_others_is_not_used(tmp_path, monkeypatch):
    Cache(tmp_path).put(KEY, FILES)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    monkeypatch.setattr(cache, "_ROOT", -1)
    with pytest.warns(CacheWarning, match="belongs to another user"):
        assert Cache(tmp_path).get(KEY) is None


def test_new_folders_are_the_user_s_alone(tmp_path):
    before = os.umask(0)
    try:
        Cache(tmp_path / "new").put(KEY, FILES)
    finally:
        os.umask(before)
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert len(folders) == 4 and {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert Cache(tmp_path / "new").get(KEY) == FILES


def test_threads_take_turns_at_a_key_and_not_at_others():
    order = []

    def other():
        with turn(KEY):
            order.append("other")

    thread = threading.Thread(target=other)
    with turn(KEY):
        thread.start()
        with turn(f"{KEY}0"):
            thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


FORKS = """
import os, threading
from convgen.turns import turn

held = threading.Event()
def hold():
    with turn("a"):
        held.set()
        threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    with turn("a"):
        os._exit(7)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have():
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=60).returncode == 7


FORKS_WHILE_IT_MAKES = """
import gc, os, threading
from convgen.functional.kernels import Once
from convgen.kernels.collector import no_collections

held = threading.Event()
def make(key):
    with no_collections:
        held.set()
        threading.Event().wait()

once = Once(make)
threading.Thread(target=once, args=["a"], daemon=True).start()
held.wait()
assert not gc.isenabled()
child = os.fork()
if child == 0:
    assert gc.isenabled()
    once._make = lambda key: 7
    os._exit(once("a"))
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_makes_what_a_thread_of_its_parent_was_making():
    assert subprocess.run([sys.executable, "-c", FORKS_WHILE_IT_MAKES], timeout=60).returncode == 7


PLANS_AND_FORKS = """
import os, sys, threading, time
from convgen import driver, planner
from convgen.spec import Spec

text = "conv {} {{ input x: f16[n=1, h=8, w=8, c=16] filter w: f16[k=16, r=3, s=3, c=16] output y: f16[n, p, q, k] }}"
(first,), (second,) = (driver.load(Spec(text.format(name))) for name in "ab")
choose, inside = planner.choose, threading.Event()

def blocked(problem, *arguments):
    if problem.name == "a":
        inside.set()
        time.sleep(600)
    return choose(problem, *arguments)

planner.choose = blocked
threading.Thread(target=lambda: first.choice, daemon=True).start()
assert inside.wait(60)
child = os.fork()
if not child:
    second.choice
    os._exit(0)
for _ in range(600):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        os._exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.1)
os.kill(child, 9)
os._exit(99)
"""


def test_a_forked_process_plans_what_a_thread_of_its_parent_was_planning():
    assert subprocess.run([sys.executable, "-c", PLANS_AND_FORKS]).returncode == 0
