"""Find the fastest configuration of each convolution on this machine's GPUs, or on those of a Ray cluster, and store
it for `auto` to use.

Every candidate of every strategy is compiled and measured, and whatever beats the best so far is verified
against a float64 reference.  Each measurement is stored in the tuning database at once: after an interrupt, a
spent budget or a crash, the same command continues where it stopped.

examples:
  convgen tune layer.conv
  convgen tune --suite resnet50,vgg16 -D n=64 --budget 600
  convgen tune layer.conv --strategies tma_im2col,tma_halo --again
  convgen tune --suite resnet50 --op fprop,dgrad,wgrad   for training
  convgen tune layer.conv --images 1-64   for `dynamic n`: up to twelve batch sizes, from which plans are chosen
  convgen tune --suite resnet50 --ray     on every GPU of the Ray cluster that this machine belongs to
  convgen tune --export tuning.sqlite   write the best of each convolution to one small file
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from convgen import plurals
from convgen.cli import console
from convgen.cli.arguments import file, jobs, one_of
from convgen.cli.sources import EMULATED, add_sources, read_sources
from convgen.diagnostics import ConvgenError
from convgen.driver import Compilation
from convgen.files import check_writable
from convgen.kernels import strategies
from convgen.spec import UsageError, known_target
from convgen.targets import target_for

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from convgen.planner.database import Database, Measurement
    from convgen.runtime.cuda import Gpu
    from convgen.tune.candidates import Candidate, Wanted
    from convgen.tune.search import Task
    from convgen.tune.spread import Each, Machines, Member


def configure(parser: argparse.ArgumentParser) -> None:
    add_sources(parser)
    parser.add_argument(
        "--budget", type=_seconds, default=math.inf, metavar="SECONDS", help="stop after this many seconds"
    )
    parser.add_argument(
        "--strategies", type=one_of(*strategies.NAMES), metavar="NAMES",
        help="try only these, separated by commas (default: the spec's, or all if it says auto)",
    )  # fmt: skip
    parser.add_argument("--again", action="store_true", help="also repeat earlier measurements")
    parser.add_argument("--retry", action="store_true", help="also retry candidates that failed or were wrong before")
    parser.add_argument(
        "--db", type=file, metavar="FILE",
        help="the database (default: CONVGEN_TUNING_DB, else one in the user's data folder)",
    )  # fmt: skip
    parser.add_argument(
        "--export", type=file, metavar="FILE", help="add the database's verified best to FILE; needs no GPU"
    )
    parser.add_argument(
        "--ray", nargs="?", const="auto", type=_address, metavar="ADDRESS",
        help="measure on every GPU of a Ray cluster, and compile on its CPUs (needs convgen[ray]; default: the cluster "
        "that this machine belongs to)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=jobs, metavar="N", help="compiling processes (default: cores minus two; on a cluster, all cores)"
    )


def run(arguments: argparse.Namespace) -> int:
    from convgen.planner import database

    check_writable(arguments.export)
    db_path = arguments.db or database.user_path()
    for path in (db_path, arguments.export):
        if path:
            _check_database(path)
    if arguments.export and os.path.realpath(db_path) == os.path.realpath(arguments.export):
        raise UsageError(f"{arguments.export}: is the database that is exported\nhint: name another file")
    _check_measuring(arguments)
    tuned = arguments.specs or arguments.suite or not arguments.export
    if not tuned and not os.path.exists(db_path):
        raise UsageError(f"{db_path}: no such file\nhint: `convgen tune SPEC` makes a database, on a GPU")
    sources = read_sources(arguments, lambda compilation: compilation.compared) if tuned else []
    with console.gpu_needed(EMULATED):
        code = _tune(sources, arguments, db_path) if sources else 0
    if arguments.export:
        known = database.read_all(db_path)
        console.write(f"{plurals.counted(_export(known, db_path, arguments.export), 'choice')} in {arguments.export}")
    return code


def _tune(sources: list[tuple[str, Compilation]], arguments: argparse.Namespace, db_path: Path) -> int:
    from convgen.planner.database import Database
    from convgen.tune.spread import Spread

    code, failed = 0, None
    with _machines(arguments) as machines:  # there are some, before a database is made for them
        with Database(db_path, say=console.warn) as db:
            gpus = dict.fromkeys(member.gpu for member in machines.members)
            tasks = {
                f"{name} on {gpu.name}" if len(gpus) > 1 else name: task
                for gpu in gpus
                for name, task in _tasks(sources, arguments, db, gpu, machines.each).items()
            }
        with console.progress_bar("tuning") as advance:
            observer = Progress(tasks, len(machines.members), advance)
            try:
                Spread(list(tasks.values()), machines, db_path, observer, arguments.budget).run()
            except KeyboardInterrupt:
                code = 130
            except ConvgenError as e:
                code, failed = 1, e
    _show(tasks)
    if left := sum(len(task.untried) for task in tasks.values()):
        why = "interrupted" if code == 130 else "ended early" if failed else "the budget is used up"
        console.warn(f"{why} with {plurals.counted(left, 'candidate')} left: run the same command again to continue")
    if failed:
        raise failed
    hopeless = [task for task in tasks.values() if not task.untried and not task.best]
    return code or (1 if hopeless else 0)


def _machines(arguments: argparse.Namespace) -> AbstractContextManager[Machines]:
    if arguments.ray:
        from convgen.tune.cluster import cluster

        return cluster(arguments.ray, arguments.jobs, console.warn)
    from convgen.tune import machine

    return machine.local(arguments.jobs)


def _tasks(
    sources: list[tuple[str, Compilation]], arguments: argparse.Namespace, db: Database, gpu: Gpu, each: Each
) -> dict[str, Task]:
    """A task for each distinct convolution on a kind of GPU, by the name of the first that has it; one for each way to
    compute it that specs state."""
    from convgen.planner import database
    from convgen.planner.database import Status
    from convgen.tune.candidates import listed
    from convgen.tune.search import prepare

    forget = tuple(Status) if arguments.again else (Status.FAILED, Status.WRONG) if arguments.retry else ()
    distinct: dict[tuple[object, ...], tuple[str, Wanted]] = {}
    for name, source in sources:
        wanted = _wanted(_for(source, name, gpu), arguments)
        what = database.key(wanted.problem), tuple(wanted.names), database.canonical(wanted.fixed)
        distinct.setdefault(what, (name, wanted))
    tasks: dict[str, Task] = {}
    for (name, wanted), (untuned, found) in zip(
        distinct.values(), each(listed, [wanted for _, wanted in distinct.values()]), strict=True
    ):
        first = [c if c and c[0] in wanted.names else None for c in (_tuned(wanted, gpu.name), untuned)]
        once = {(c[0], database.canonical(c[1])): c for c in (*first, *found) if c}
        tasks[name] = prepare(
            wanted.problem, wanted.target, list(once.values()), db, gpu.name, forget, first[1], wanted.fixed
        )  # fmt: skip
    return tasks


def _for(source: Compilation, name: str, gpu: Gpu) -> Compilation:
    """The compilation for a kind of GPU, which need not be this machine's.  Raises UsageError."""
    named = source.spec.target or source.request.target
    target = known_target(named) if named else target_for(gpu.capability)
    if target is None or not target.runs_on(gpu.capability):
        why = f"is for {target}, which does not run on this {gpu.name}" if target else f"has no target for {gpu.name}"
        raise UsageError(f"{name} {why}\nhint: leave its target out")
    return Compilation(replace(source.spec, target=target.name), source.request)


def _tuned(wanted: Wanted, gpu: str) -> Candidate | None:
    """What is taken now because it was measured: it comes before all else, so that a search which ends early leaves
    nothing worse.  What would be taken without comes next, and what is won is seen beside it."""
    from convgen import planner
    from convgen.tune.candidates import chosen

    problem, target = wanted.problem, wanted.target
    return chosen(problem, target, lambda: planner.tuned(problem, target, wanted.strategy, wanted.options, gpu))


def _wanted(compilation: Compilation, arguments: argparse.Namespace) -> Wanted:
    """The strategies to try, and the options that all candidates must have."""
    from convgen.tune.candidates import Wanted

    request, names = compilation.request, arguments.strategies
    if not names:
        chosen = arguments.strategy or request.strategy
        names = strategies.AUTO if chosen == "auto" else (chosen,)
    fixed = request.options if tuple(names) == (request.strategy,) else {}
    return Wanted(request.problem, compilation.target, compilation.strategy, compilation.options, tuple(names), fixed)


def _export(known: list[Measurement], db_path: Path, path: Path) -> int:
    """Add to what the file has.  How many there are.  The database's measurements take the place of the file's where
    they have the file's choice among them: times of different days are not to be compared.  Where another strategy
    was said to be faster, it was not found to be now, and goes too."""
    from convgen.planner import database, shipping

    if all(m.status is not database.Status.RIGHT for m in known):
        raise UsageError(f"{db_path}: holds no verified measurement\nhint: `convgen tune SPEC` measures, on a GPU")

    try:
        return shipping.update(path, lambda file: _added(known, database.read_all(file) if file else []))
    except OSError as e:
        raise UsageError(f"{path}: cannot be written: {e.strerror or e}") from None


def _added(known: list[Measurement], held: list[Measurement]) -> list[Measurement]:
    """A file's contents after a database's measurements are added to its own."""
    from convgen.planner import database

    choices: dict[tuple[str, str], Measurement] = {}
    for m in sorted(held, key=lambda m: m.us or math.inf):
        choices.setdefault((m.key, m.gpu), m)
    measured = {(m.key, m.gpu, m.candidate) for m in known}
    stay = {key for key, m in choices.items() if (*key, m.candidate) not in measured}
    own = [m for m in known if m.status is database.Status.RIGHT and (m.key, m.gpu) not in stay]
    strategies_known = {(m.key, m.gpu, m.strategy) for m in own}
    fastest: dict[tuple[str, str], float] = {}
    for m in own:
        fastest[m.key, m.gpu] = min(m.us or math.inf, fastest.get((m.key, m.gpu), math.inf))
    kept = [
        m
        for m in held
        if (m.key, m.gpu, m.strategy) not in strategies_known and (m.us or math.inf) > fastest.get((m.key, m.gpu), 0.0)
    ]
    return [*own, *kept]


class Progress:
    """Shows progress: a bar on a terminal, else a line a convolution."""

    def __init__(self, tasks: dict[str, Task], gpus: int, advance: console.Advance) -> None:
        self._names = {id(task): name for name, task in tasks.items()}
        self._done, self._gpus = 0, gpus
        self._advance, self._begun, self._seconds_left = advance, time.monotonic(), 0.0

    @property
    def _state(self) -> str:
        return f"{self._done} of {plurals.counted(len(self._names), 'layer')}, {plurals.counted(self._gpus, 'GPU')}"

    def measured(self, task: Task, measurement: Measurement, seconds_left: float) -> None:
        gone = time.monotonic() - self._begun
        self._seconds_left = seconds_left
        self._advance(int(1000 * gone), int(1000 * (gone + seconds_left)), f"tuning: {self._state}")

    def finished(self, task: Task) -> None:
        self._done += 1
        if console.is_terminal(sys.stderr):
            return
        best = task.best
        found = f"{best.us:.2f} us by {best.strategy} ({best.detail})" if best else "no correct result"
        left = f"{self._state}, about {self._seconds_left / 60:.1f} min left"
        print(f"{self._names[id(task)]}: {found}; {task.tried} tried; {left}", file=sys.stderr, flush=True)

    def gone(self, member: Member, reason: str, left: int) -> None:
        self._gpus = left
        console.warn(f"a {member.gpu.name} is lost, {plurals.counted(left, 'GPU')} left: {reason}")


def _show(tasks: dict[str, Task]) -> None:
    from convgen.planner.database import Status

    rows = []
    for name, task in tasks.items():
        best, before = task.best, task.default
        gain = f"{before.us / best.us:.2f}x" if best and best.us and before and before.us else "-"
        rows.append(
            (
                name,
                str(len(task.known)),
                str(task.count(Status.FAILED)),
                str(task.count(Status.WRONG)),
                f"{before.us:.2f}" if before and before.us else "-",
                f"{best.us:.2f}" if best else "-",
                gain,
                best.strategy if best else "-",
                best.detail if best else "-",
            )
        )
    headers = ("layer", "known", "failed", "wrong", "default us", "best us", "gain", "strategy", "configuration")
    console.table(headers, rows)


#: What says which convolutions are measured, and how.
_MEASURING = {
    "defines": "-D", "only": "--only", "op": "--op", "images": "--images", "target": "--target",
    "strategy": "--strategy", "strategies": "--strategies", "again": "--again", "retry": "--retry", "ray": "--ray",
    "jobs": "--jobs",
}  # fmt: skip


def _check_measuring(arguments: argparse.Namespace) -> None:
    """Raises UsageError if options for measuring are given, but nothing to measure."""
    given = [flag for name, flag in _MEASURING.items() if getattr(arguments, name)]
    given += ["--budget"] * (arguments.budget < math.inf)
    if given and arguments.export and not (arguments.specs or arguments.suite):
        raise UsageError(f"{given[0]} is for measuring, and no SPEC is named\nhint: name one, or leave out {given[0]}")


def _check_database(path: Path) -> None:
    """A file of something else is neither written to nor set aside where it was named.  Raises UsageError,
    DatabaseError."""
    from convgen.planner.database_file import MAGIC, check_ours

    if os.path.isdir(path):
        raise UsageError(f"{path}: is a folder\nhint: name a file")
    if os.path.exists(path) and not path.is_file():
        raise UsageError(f"{path}: is a device or a pipe\nhint: name a file")
    try:
        with open(path, "rb") as file:
            start = file.read(len(MAGIC))
    except FileNotFoundError:
        return
    except (OSError, ValueError) as e:
        raise UsageError(f"{path}: cannot be read: {getattr(e, 'strerror', None) or e}") from None
    if start and start != MAGIC:
        raise UsageError(f"{path}: not a tuning database\nhint: name another file, or move this one away")
    check_ours(path)


def _address(text: str) -> str:
    host, colon, _ = text.rpartition(":")
    if text.endswith(".conv") or os.path.exists(text):
        raise argparse.ArgumentTypeError(f"{text!r} is a file, and no address\nhint: {text} --ray, the files first")
    if not text or (colon and not host):  # of a variable that is not set
        hint = "hint: HOST:PORT, or nothing for the cluster that this machine belongs to"
        raise argparse.ArgumentTypeError(f"{text!r} is no address\n{hint}")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, such as 600")
    return seconds
