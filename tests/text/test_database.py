"""The tuning database: keys, the choice, sharing between processes, files that are broken."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dynamic_problems import with_dynamic
from tma_specs import spec

from convgen.frontend import load
from convgen.ir import epilogue as ep
from convgen.ir.problem import ConvProblem, Op
from convgen.ir.tensor import Tensor
from convgen.kernels import registry
from convgen.kernels.config import option_rows
from convgen.planner import YIELDING, CannotServe, choose, database, shipping
from convgen.planner.database import Database, DatabaseWarning, Measurement, Status
from convgen.planner.database_file import DatabaseError
from convgen.targets import TARGETS

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
SM_90A = TARGETS["sm_90a"]


def problem(n: int = 8, name: str = "a", op: Op = Op.FPROP, layout: str = "nhwc") -> ConvProblem:
    extents = {"n": n, "h": 14, "w": 14, "c": 64}
    return ConvProblem(
        name, op, n, 64, 96, (14, 14), (3, 3), (14, 14), (1, 1), (1, 1), (1, 1), (1, 1), 1,
        Tensor(f"{name}_x", "x", "f16", tuple(layout), tuple(extents[d] for d in layout)),
        Tensor("w", "w", "f16", ("k", "r", "s", "c"), (96, 3, 3, 64)),
        Tensor("y", "y", "f16", ("n", "p", "q", "k"), (n, 14, 14, 96)),
    )  # fmt: skip


def with_epilogue(p: ConvProblem, text: str) -> ConvProblem:
    (only,) = load(spec(p, "direct", {}, text))
    return only.problem


def with_bias(p: ConvProblem, function: str = "relu", operand: str = "b") -> ConvProblem:
    value = ep.Call(function, (ep.Binary("+", ep.Acc(), ep.OperandRef(operand)),))
    tensor = Tensor(operand, "operand", "f32", ("k",), (p.k,))
    return replace(p, epilogue=ep.Epilogue((tensor,), (ep.Assignment("y", value),)))


def measured(p: ConvProblem, us: float | None, strategy: str = "direct", status: Status = Status.RIGHT, **rest):
    return Measurement(database.key(p), rest.get("gpu", H200), strategy, rest.get("options", {}), status, us)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's database, alone: nothing packaged."""
    monkeypatch.setenv("CONVGEN_TUNING_DB", str(tmp_path / "tuning.sqlite"))
    monkeypatch.setattr(database, "PACKAGED", tmp_path / "packaged.sqlite")
    return tmp_path / "tuning.sqlite"


# ---- keys --------------------------------------------------------------------------------------


def test_a_key_leaves_out_names_and_arithmetic():
    assert database.key(problem(name="a")) == database.key(problem(name="b"))
    assert database.key(with_bias(problem(), "relu", "b")) == database.key(with_bias(problem(), "gelu", "shift"))


def test_a_key_tells_apart_what_moves_the_clock():
    p = problem()
    wide = replace(p, pad_lo=(1, 2))
    identity = replace(p, epilogue=ep.Epilogue((), (ep.Assignment("y", ep.Acc()),)))
    f32 = replace(p, y=replace(p.y, dtype="f32"))
    different = [p, problem(n=9), problem(op=Op.DGRAD), problem(layout="nchw"), wide, f32, with_bias(p)]
    assert len({database.key(q) for q in different}) == len(different)
    assert database.key(identity) == database.key(p)


def test_a_key_does_not_see_dims_of_extent_1():
    pointwise = replace(problem(), filter=(1, 1), w=Tensor("w", "w", "f16", ("k", "r", "s", "c"), (96, 1, 1, 64)))
    assert database.key(pointwise) == database.key(replace(pointwise, w=Tensor("w", "w", "f16", ("k", "c"), (96, 64))))


# ---- the choice ----------------------------------------------------------------------------------


def test_the_choice_is_the_fastest_that_was_verified(path: Path):
    p = problem()
    with Database(path) as db:
        db.record(measured(p, 3.0, "a", Status.TIMED))
        db.record(measured(p, 2.0, "b", Status.WRONG))
        db.record(measured(p, None, "c", Status.FAILED))
        assert database.lookup(p, SM_90A) is None
        db.record(measured(p, 9.0, "d"))
        db.record(measured(p, 5.0, "e", options={"tile.m": 128, "schedule": "pingpong"}))
        db.record(measured(problem(n=9), 1.0, "f"))
    tuned = database.lookup(p, SM_90A)
    assert tuned is not None
    assert (tuned.strategy, tuned.us, tuned.gpu) == ("e", 5.0, H200)
    assert tuned.options == {"tile.m": 128, "schedule": "pingpong"}
    assert tuned.reason == "tuned on NVIDIA H200: 5.0 us"
    named = database.lookup(p, SM_90A, strategy="d")
    assert named is not None and named.us == 9.0


def test_a_measurement_takes_the_place_of_an_earlier_one(path: Path):
    p = problem()
    with Database(path) as db:
        db.record(measured(p, 3.0, options={"a": 1, "b": 2}))
        db.record(measured(p, 4.0, options={"b": 2, "a": 1}))
        assert [m.us for m in db.measurements()] == [4.0]


def test_the_gpu_at_hand_goes_before_the_reference_gpu(path: Path):
    p = problem()
    with Database(path) as db:
        db.record(measured(p, 3.0, "a", gpu=H200))
        db.record(measured(p, 7.0, "b", gpu=H100))

    def choice(gpu: str | None, target: str = "sm_90a") -> str | None:
        found = database.lookup(p, TARGETS[target], gpu)
        return found and found.strategy

    assert choice(None) == "a"
    assert choice(H200) == "a"
    assert choice(H100) == "b"
    assert choice("NVIDIA GH200 480GB") == "a"
    assert choice(None, "sm_80") is None


def test_an_epilogue_that_was_not_measured_takes_the_bare_convolutions_choice(path: Path):
    p = problem()
    with Database(path) as db:
        db.record(measured(p, 3.0, "bare"))
        found = database.lookup(with_bias(p), SM_90A)
        assert found is not None and found.strategy == "bare" and "without the epilogue" in found.reason
        db.record(measured(with_bias(p), 4.0, "fused"))
        found = database.lookup(with_bias(p), SM_90A)
        assert found is not None and found.strategy == "fused" and not found.left_out


def test_operands_smaller_than_the_result_do_not_hide_what_was_measured_with_larger_ones(path: Path):
    """A residual decides how fast an epilogue is, and a bias beside it hardly matters."""
    p = problem()
    added = with_epilogue(p, "operand z: f16[n, p, q, k]  y = acc + z")
    biased = with_epilogue(p, "operand b: f32[k]  operand z: f16[n, p, q, k]  y = relu(acc + b + z)")
    gated = with_epilogue(p, "operand e: f16[n, k]  y = acc * e")
    with Database(path) as db:
        db.record(measured(p, 2.0, "bare"))
        db.record(measured(added, 4.0, "added"))
        for asked, strategy, left_out in (
            (added, "added", ""), (biased, "added", "small operands"), (gated, "bare", "the epilogue"),
        ):  # fmt: skip
            found = database.lookup(asked, SM_90A)
            assert found is not None and (found.strategy, found.left_out) == (strategy, left_out)
        db.record(measured(biased, 5.0, "biased"))
        found = database.lookup(biased, SM_90A)
        assert found is not None and found.strategy == "biased" and not found.left_out
        wider = with_epilogue(p, "operand b: f32[k]  operand z: f32[n, p, q, k]  y = relu(acc + b + z)")
        found = database.lookup(wider, SM_90A)
    assert found is not None and found.strategy == "bare"


def test_an_epilogue_is_left_to_strategies_that_fuse_it(path: Path):
    """cuBLAS may be the fastest for a bare 1x1 layer; an epilogue takes a second launch, over a whole result."""
    p = problem()
    with Database(path) as db:
        db.record(measured(p, 2.0, "im2col"))
        assert database.lookup(with_bias(p), SM_90A) is None
        db.record(measured(p, 3.0, "tma_im2col"))
        for asked, strategy, taken in ((p, None, "im2col"), (with_bias(p), None, "tma_im2col"),
                                       (with_bias(p), "im2col", "im2col")):  # fmt: skip
            found = database.lookup(asked, SM_90A, strategy=strategy)
            assert found is not None and found.strategy == taken
        db.record(measured(with_bias(p), 2.5, "im2col"))
        found = database.lookup(with_bias(p), SM_90A)
        assert found is not None and found.strategy == "im2col" and not found.left_out


def test_dynamic_sizes_have_rows_of_their_own(path: Path):
    """Whose choice is among fewer kernels and options than that of fixed sizes."""
    p = with_bias(problem())
    dynamic = with_dynamic(p)
    assert dynamic.static == p
    with Database(path) as db:
        db.record(measured(dynamic, 5.0, "dynamic"))
        assert database.lookup(p, SM_90A) is None
        db.record(measured(p, 3.0, "fixed"))
        kept = [database.lookup(q, SM_90A) for q in (p, dynamic)]
        assert [(t.strategy, t.left_out) for t in kept if t] == [("fixed", ""), ("dynamic", "")]
        images_alone = database.lookup(replace(p, dynamic=("n",)), SM_90A)
    assert images_alone is not None and images_alone.strategy == "fixed"
    assert images_alone.reason == "tuned on NVIDIA H200, without dynamic sizes: 3.0 us"


def test_dynamic_sizes_without_a_row_take_the_bare_convolutions_last(path: Path):
    bare, fused = problem(), with_bias(problem())
    with Database(path) as db:
        for p, us in ((bare, 1.0), (with_dynamic(bare), 2.0), (fused, 3.0)):
            before = database.lookup(with_dynamic(fused), SM_90A)
            assert before is None or before.left_out == "the epilogue"
            db.record(measured(p, us, f"took {us}"))
        found = database.lookup(with_dynamic(fused), SM_90A)
    assert found is not None and (found.strategy, found.left_out) == ("took 3.0", "dynamic sizes")


def test_other_schemas_are_not_read(path: Path, monkeypatch: pytest.MonkeyPatch):
    p = problem()
    with Database(path) as db:
        db.record(measured(p, 3.0))
    monkeypatch.setattr(database, "TUNING_SCHEMA", database.TUNING_SCHEMA + 1)
    assert database.lookup(p, SM_90A) is None


def test_the_users_measurements_go_before_the_packaged_ones(path: Path):
    p = problem()
    rows = [
        measured(p, 3.0, "packaged"),
        measured(p, 4.0, "packaged", options={"a": 1}),
        measured(p, 1.0, "hasty", Status.TIMED),
    ]
    assert shipping.export(rows, database.PACKAGED) == 1
    found = database.lookup(p, SM_90A)
    assert found is not None and (found.strategy, found.us) == ("packaged", 3.0)
    with Database(path) as db:
        db.record(measured(p, 9.0, "own"))
    found = database.lookup(p, SM_90A)
    assert found is not None and found.strategy == "own"


def test_an_export_does_not_depend_on_the_order_of_rows(tmp_path: Path):
    rows = [measured(problem(n=n), 1.0 * n, s) for n in (1, 2, 3) for s in ("a", "b")]
    shipping.export(rows, tmp_path / "one")
    shipping.export(rows[::-1], tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_reading_writes_nothing(path: Path):
    assert database.lookup(problem(), SM_90A) is None
    assert list(path.parent.iterdir()) == []


def test_the_stamp_changes_with_every_record(path: Path):
    stamps = [database.stamp()]
    with Database(path) as db:
        for us in (3.0, 2.0):
            db.record(measured(problem(), us))
            stamps.append(database.stamp())
    assert len({str(s) for s in stamps}) == 3


# ---- the planner -----------------------------------------------------------------------------------


def test_auto_takes_the_tuned_choice_while_it_is_legal(path: Path):
    p = problem()
    before = choose(p, SM_90A, "auto", {})
    assert "tuned" not in before.reason
    with Database(path) as db:
        db.record(measured(p, 5.0, "tma_im2col", options={"tile.m": 64, "tile.n": 96}))
        choice = choose(p, SM_90A, "auto", {})
        whole = registry.completed("tma_im2col", {"tile.m": 64, "tile.n": 96})
        assert whole["resident"] == 0  # an option that the row is older than
        assert (choice.strategy.name, choice.options) == ("tma_im2col", whole)
        assert choice.reason == "tuned on NVIDIA H200: 5.0 us"
        assert choose(p, SM_90A, "tma_im2col", {}).options == choice.options
        assert choose(p, SM_90A, "tma_im2col", {"tile.m": 128}).options == {"tile.m": 128}
        for strategy, illegal in (
            ("tma_im2col", {"stages": 32, "tile.m": 256}),
            ("tma_im2col", {"an option that is gone": 1}),
            ("implicit_gemm", {"kernel": "a choice that is gone"}),
            ("implicit_gemm", {"tile.m": "a number that is none"}),
        ):
            db.record(measured(p, 1.0, strategy, options=illegal))
            assert choose(p, SM_90A, "auto", {}).reason == before.reason
            with pytest.raises(CannotServe):
                choose(problem(op=Op.WGRAD), SM_90A, "tma_halo", {})


def test_what_varies_from_run_to_run_is_not_taken_because_it_was_measured(path: Path):
    p = problem(op=Op.WGRAD)
    atomic = dict(registry.completed("tma_wgrad", {"kernel": "tma_wgrad", "tile.n": 192, "sums": "atomic"}))
    ordered = {**atomic, "sums": "ordered"}
    with Database(path) as db:
        db.record(measured(p, 1.0, "tma_im2col", options=atomic))
        assert database.lookup(p, SM_90A) is None and database.lookup(p, SM_90A, strategy="tma_im2col") is None
        db.record(measured(p, 2.0, "tma_im2col", options=ordered))
        found = database.lookup(p, SM_90A)
        assert found is not None and found.options == ordered
        shipping.export(db.measurements(), database.PACKAGED)
    assert [m.options for m in database.read_all(database.PACKAGED)] == [ordered]


def test_a_choice_without_the_epilogue_makes_room_for_operands_that_arrive_as_tiles(path: Path):
    """What was measured with the epilogue is not touched."""
    bare = problem()
    z = replace(bare.y, name="z", role="operand")
    body = ep.Assignment("y", ep.Binary("+", ep.Acc(), ep.OperandRef("z")))
    residual = replace(bare, epilogue=ep.Epilogue((z,), (body,)))
    full = dict(
        registry.completed("tma_im2col", {"tile.m": 128, "tile.n": 96, "tile.k": 64, "consumers": 2, "stages": 7})
    )
    with Database(path) as db:
        db.record(measured(bare, 5.0, "tma_im2col", options=full))
        assert choose(bare, SM_90A, "auto", {}).options == full
        choice = choose(residual, SM_90A, "auto", {})
        assert choice.options == {name: value for name, value in full.items() if name != "stages"}
        assert "without the epilogue" in choice.reason
        db.record(measured(residual, 6.0, "tma_im2col", options=full))
        assert "tuned" not in choose(residual, SM_90A, "auto", {}).reason


def test_a_choice_without_the_epilogue_that_keeps_too_few_stages_is_given_up(path: Path):
    """Two operands leave two stages of five: 12.2 us on an H100, where what the models choose takes 8.6."""
    (request,) = load(
        "conv layer { input x: f16[n=8, h=28, w=28, c=512]  filter w: f16[k=1024, r=1, s=1, c=512]"
        "  output y: f16[n, p, q, k]  stride 2 }"
    )
    full = dict(
        registry.completed(
            "tma_im2col",
            {
                "tile.m": 128,
                "tile.n": 104,
                "tile.k": 64,
                "consumers": 2,
                "schedule": "pingpong",
                "cluster": 2,
                "stages": 5,
            },
        )
    )

    def reason(count: int) -> str:
        bare = request.problem
        zs = tuple(replace(bare.y, name=f"z{i}", role="operand") for i in range(count))
        value: Any = ep.Acc()
        for z in zs:
            value = ep.Binary("+", value, ep.OperandRef(z.name))
        return choose(replace(bare, epilogue=ep.Epilogue(zs, (ep.Assignment("y", value),))), SM_90A, "auto", {}).reason

    with Database(path) as db:
        db.record(measured(request.problem, 5.0, "tma_im2col", options=full))
        assert "without the epilogue" in reason(1)
        assert "by the cost model" in reason(2)


def test_what_yields_are_options():
    known = {option.name for row in registry.KERNELS for option in option_rows(row.config)}
    assert {name for names in YIELDING for name in names} <= known


def test_a_tile_that_leaves_operands_no_room_is_chosen_anew(path: Path):
    bare = problem()
    zs = tuple(replace(bare.y, name=name, role="operand", dtype="f32") for name in ("z", "v"))
    total = ep.Binary("+", ep.Binary("+", ep.Acc(), ep.OperandRef("z")), ep.OperandRef("v"))
    residuals = replace(bare, epilogue=ep.Epilogue(zs, (ep.Assignment("y", total),)))
    wide = {"tile.m": 192, "strip": 14, "images": 1, "tile.n": 64, "tile.k": 64, "stages": 1, "weight_stages": 0}
    wide |= {"consumers": 3, "schedule": "pingpong", "swap_ab": 1}
    with Database(path) as db:
        db.record(measured(bare, 5.0, "tma_halo", options=registry.completed("tma_halo", wide)))
        assert choose(bare, SM_90A, "auto", {}).reason == "tuned on NVIDIA H200: 5.0 us"
        assert "by the cost model" in choose(residuals, SM_90A, "auto", {}).reason


def test_a_choice_without_the_epilogue_says_nothing_of_sums(path: Path):
    """Which tma_halo would make through memory, and tma_im2col makes itself."""
    bare = problem()
    total = replace(bare.y, name="s", role="result", dtype="f32", dims=("k",), extents=(bare.k,))
    body = (ep.Assignment("s", ep.Acc()), ep.Assignment("y", ep.Acc()))
    summed = replace(bare, epilogue=ep.Epilogue((), body, results=(total,)))
    with Database(path) as db:
        db.record(measured(bare, 1.0, "direct"))
        assert choose(bare, SM_90A, "auto", {}).strategy.name == "direct"
        assert "by the cost model" in choose(summed, SM_90A, "auto", {}).reason
        db.record(measured(summed, 2.0, "direct"))
        assert choose(summed, SM_90A, "auto", {}).strategy.name == "direct"


# ---- broken and foreign files ------------------------------------------------------------------------


def ruin(path: Path, how: str) -> None:
    with Database(path) as db:
        for n in range(200):
            db.record(measured(problem(n=n + 1), 1.0 + n))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    data = bytearray(path.read_bytes())
    match how:
        case "text":
            data = bytearray(b"this is no database\n" * 100)
        case "page":
            data[8192:12288] = b"\xa5" * 4096
        case "cut":
            del data[len(data) // 2 :]
        case "layout":
            data[60:64] = (77).to_bytes(4, "big")
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["text", "layout", "another program's"])
def test_a_file_of_something_else_is_left_as_it_is(path: Path, how: str):
    ruin(path, how)
    if how == "another program's":
        path.unlink()
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE thesis (words TEXT)")
        connection.close()
    own = path.read_bytes()
    with pytest.raises(DatabaseError, match="not a tuning database"):
        Database(path)
    assert path.read_bytes() == own and not [p for p in path.parent.iterdir() if ".broken-" in p.name]


@pytest.mark.parametrize("how", ["page", "cut"])
def test_a_broken_database_is_set_aside_with_a_message(path: Path, how: str):
    ruin(path, how)
    broken = path.read_bytes()
    messages: list[str] = []
    with Database(path, say=messages.append) as db:
        db.record(measured(problem(), 3.0))
    assert len(messages) == 1 and str(path) in messages[0]
    (aside,) = [p for p in path.parent.iterdir() if ".broken-" in p.name]
    assert aside.name in messages[0] and aside.read_bytes() == broken
    assert database.lookup(problem(), SM_90A) is not None


def test_the_planner_goes_on_without_a_broken_database(path: Path):
    path.write_text("this is no database\n" * 100)
    shipping.export([measured(problem(), 3.0, "direct")], database.PACKAGED)
    with pytest.warns(DatabaseWarning, match=r"tuning\.sqlite cannot be read"):
        assert choose(problem(), SM_90A, "auto", {}).strategy.name == "direct"
    assert path.read_text().startswith("this is no database")


def test_a_choice_that_this_version_does_not_know_leaves_the_next_one(path: Path):
    shipping.export([measured(problem(), 6.0, "direct")], database.PACKAGED)
    with Database(path) as db:
        db.record(measured(problem(), 3.0, "tma_im2col"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE measurement SET options = '{\"of_the_future\":1}'")
    connection.close()
    assert choose(problem(), SM_90A, "auto", {}).strategy.name == "direct"
    with Database(path) as db:
        db.record(measured(problem(), 5.0, "im2col"))
    assert choose(problem(), SM_90A, "auto", {}).strategy.name == "im2col"


def test_what_cannot_be_kept_is_an_error_that_says_so(path: Path):
    with Database(path) as db:
        db.record(measured(problem(), 3.0))
        (pages,) = db._connection.execute("PRAGMA page_count").fetchone()
        db._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(DatabaseError, match=r"cannot be written: database or disk is full\nhint: "):
            for n in range(500):
                db.record(replace(measured(problem(), 3.0), key=f"{n}" * 100))
        assert len(db.measurements()) < 500  # and it is still of use


@pytest.mark.parametrize("in_use", [False, True])
def test_exports_into_one_file_lose_nothing(path: Path, tmp_path: Path, in_use: bool):
    """Nor what lies beside it."""
    out, beside = tmp_path / "new" / "out.sqlite", tmp_path / "new" / "out.sqlite.new"
    out.parent.mkdir()
    beside.write_text("mine")
    if in_use:
        with Database(out) as db:
            db.record(measured(problem(n=99), 1.0))
            shutil.copy(f"{out}-wal", tmp_path / "wal")
        shutil.copy(tmp_path / "wal", f"{out}-wal")  # as of a process that was killed
    sources = [tmp_path / f"{i}.sqlite" for i in range(3)]
    for i, source in enumerate(sources):
        shipping.export([measured(problem(n=10 * i + n + 1), 2.0) for n in range(9)], source)
    commands = [
        subprocess.Popen([sys.executable, "-m", "convgen", "tune", "--db", source, "--export", out])
        for source in sources
    ]
    assert [command.wait() for command in commands] == [0] * 3
    keys = {m.key for m in database.read_all(out)}
    assert keys == {m.key for source in sources for m in database.read_all(source)} | (
        {database.key(problem(n=99))} if in_use else set()
    )
    assert beside.read_text() == "mine" and not list(out.parent.glob(".*.tmp"))


def test_a_database_is_not_exported_onto_itself(path: Path, tmp_path: Path):
    shipping.export([measured(problem(), 2.0)], path)
    own, link = path.read_bytes(), tmp_path / "link.sqlite"
    link.symlink_to(path)
    for place in (path, link):
        command = [sys.executable, "-m", "convgen", "tune", "--db", path, "--export", place]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and "is the database that is exported" in done.stderr
    assert path.read_bytes() == own


@pytest.mark.parametrize("place", ["no/such/out.sqlite", "empty.sqlite"])
def test_an_export_makes_its_folder_and_takes_an_empty_file(path: Path, tmp_path: Path, place: str):
    shipping.export([measured(problem(), 2.0)], path)
    (tmp_path / "empty.sqlite").touch()
    path.chmod(0o444)
    command = [sys.executable, "-m", "convgen", "tune", "--db", path, "--export", tmp_path / place]
    assert subprocess.run(command).returncode == 0
    assert len(database.read_all(tmp_path / place)) == 1


def test_an_empty_file_is_a_database_without_measurements(path: Path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert database.lookup(problem(), SM_90A) is None


def test_a_folder_in_a_database_s_place_is_said(path: Path):
    path.mkdir(parents=True)
    with pytest.warns(DatabaseWarning, match=r"tuning\.sqlite cannot be read") as warned:
        choose(problem(), SM_90A, "auto", {})
    assert {warning.filename for warning in warned} == {__file__}  # the program's own


@pytest.mark.parametrize(
    "options, us",
    [
        ("[]", 1.0), ("null", 1.0), ('{"tile.m": 128', 1.0), ('{"tile.m": [128]}', 1.0), ('{"tile.m": 12.5}', 1.0),
        ('{"tile.m": true}', 1.0), ("{}", "soon"), ("{}", b"1"),
    ],
)  # fmt: skip
def test_the_planner_goes_on_without_a_row_that_is_none(path: Path, options: str, us: object):
    with Database(path) as db:
        db.record(measured(problem(), 9.0, "tma_im2col"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE measurement SET options = ?, us = ?", (options, us))
    connection.close()
    with pytest.warns(DatabaseWarning, match=r"tuning\.sqlite cannot be read"):
        assert "tuned" not in choose(problem(), SM_90A, "auto", {}).reason
    with pytest.raises(DatabaseError, match="not a tuning database"):
        database.read_all(path)
    with Database(path) as db, pytest.raises(DatabaseError, match="not a tuning database"):
        db.measurements()


def test_a_place_that_cannot_be_written_says_so(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match="CONVGEN_TUNING_DB"):
        Database(tmp_path / "file" / "tuning.sqlite")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DatabaseError, match="CONVGEN_TUNING_DB"):
        Database(tmp_path / "folder")


# ---- many processes ----------------------------------------------------------------------------------

ROWS = 40


def write_rows(path: Path, strategy: str) -> None:
    with Database(path) as db:
        for n in range(1, ROWS + 1):
            db.record(measured(problem(n=n), float(n), strategy))


@pytest.mark.filterwarnings("ignore::convgen.planner.database.DatabaseWarning")
@pytest.mark.parametrize("broken", [False, True])
def test_processes_that_write_at_once_lose_nothing(path: Path, broken: bool):
    if broken:
        ruin(path, "page")
    names = [f"s{i}" for i in range(6)]
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_rows, args=(path, name)) for name in names]
    for writer in writers:
        writer.start()
    while any(w.is_alive() for w in writers):  # the planner reads all the while
        database._best(path, [(database.key(problem()), H200)], None)
    for writer in writers:
        writer.join()
    assert [w.exitcode for w in writers] == [0] * len(writers)
    with Database(path) as db:
        assert {(m.strategy, m.us) for m in db.measurements()} == {
            (s, float(n)) for s in names for n in range(1, ROWS + 1)
        }


def test_a_process_that_is_killed_loses_nothing_that_it_recorded(path: Path):
    program = (
        "import sys, time; from pathlib import Path; from convgen.planner.database import *\n"
        "db = Database(Path(sys.argv[1]))\n"
        "for i in range(10**6):\n"
        "  db.record(Measurement(f'key {i}', 'g', 's', {}, Status.TIMED, 1.0)); print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(50):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    written = 50 + len(process.stdout.read().split())
    process.wait()
    with Database(path) as db:
        assert len(db.measurements()) >= written


def test_a_database_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """SQLite would want to make a file of locks beside one that was written ahead (WAL)."""
    path = tmp_path / "shared.sqlite"
    with Database(path) as db:
        db.record(measured(problem(), 1.0))
    for companion in tmp_path.glob("*-*"):
        companion.unlink()
    access = os.access
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != tmp_path and access(place, mode))
    assert len(database.read_all(path)) == 1
    assert not list(tmp_path.glob("*-*"))


@pytest.mark.parametrize(
    ("column", "value"), [("us", None), ("us", -1.0), ("us", 0.0), ("us", float("inf")), ("detail", b"x")]
)
def test_a_row_that_tuning_never_writes_is_refused(column: str, value: object, tmp_path: Path):
    path = tmp_path / "own.sqlite"
    with Database(path) as db:
        db.record(measured(problem(), 1.0))
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE measurement SET {column} = ?", (value,))
    with pytest.raises(DatabaseError, match="not a tuning database: its"):
        database.read_all(path)
