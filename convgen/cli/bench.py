"""Measure kernels and compare them with cuDNN and a cuBLAS GEMM of the same size, through PyTorch if it is installed.
Prints a table, and writes a JSON file and a plot if you ask for them.  Needs a GPU.

Everything runs in one process, as CUDA graphs over inputs that rotate through more memory than the L2
holds.  Competitors are timed in turn, so that the GPU's clocks favor none.  Every kernel's result is
verified against a float64 reference.  The exit code is 1 if a kernel is missing or wrong.

examples:
  convgen bench layer.conv
  convgen bench --suite resnet50,vgg16 -D n=64 --out r.json --plot r.png
  convgen bench --suite resnet50 --op dgrad,wgrad       the gradients of its convolutions
  convgen bench specs/recent                            every .conv file of a folder
  convgen bench layer.conv --strategies im2col,direct   also measure other strategies
  convgen bench layer.conv --images 1-64                for `dynamic n`: each plan at the batch that it is made for
  convgen bench --suite resnet50 --chain --fused        also back to back, and as relu(conv + bias)
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from convgen import driver, plurals
from convgen.cli import console
from convgen.cli.arguments import add_tune, file, jobs, one_of
from convgen.cli.sources import EMULATED, add_sources, read_sources
from convgen.files import check_writable, write_all
from convgen.ir.problem import Op
from convgen.kernels import strategies

if TYPE_CHECKING:
    from convgen.bench.results import Row, Run
    from convgen.bench.runner import Entry


def configure(parser: argparse.ArgumentParser) -> None:
    add_sources(parser)
    add_tune(parser)
    parser.add_argument("--out", type=file, metavar="FILE", help="write all figures as JSON")
    parser.add_argument("--plot", type=file, metavar="FILE", help="draw a plot, .png or .svg (needs matplotlib)")
    parser.add_argument(
        "--strategies", type=one_of("auto", *strategies.NAMES), default=(), metavar="NAMES",
        help="also measure these strategies, separated by commas",
    )  # fmt: skip
    parser.add_argument(
        "--chain", action="store_true",
        help="also launch kernels back to back, each starting while the one before it ends (dependent launch)",
    )  # fmt: skip
    parser.add_argument(
        "--fused", action="store_true",
        help="also measure every fprop with the epilogue relu(acc + bias), and compare with cuDNN's fused call",
    )  # fmt: skip
    parser.add_argument("--no-baselines", action="store_true", help="leave out cuDNN and cuBLAS")
    parser.add_argument("--no-verify", action="store_true", help="do not verify results")
    parser.add_argument("--jobs", type=jobs, metavar="N", help="compiling processes (default: cores minus two)")


def run(arguments: argparse.Namespace) -> int:
    from convgen.bench import plot
    from convgen.bench.backend import TorchBackend, at_hand
    from convgen.bench.build import Builder
    from convgen.bench.results import Run, command
    from convgen.bench.runner import Bench

    if arguments.plot:
        plot.check(arguments.plot)
    sources = read_sources(arguments, lambda compilation: compilation.classes)
    for path in (arguments.out, arguments.plot):
        check_writable(path)
    with console.gpu_needed(EMULATED):
        backend = at_hand()
    environment = backend.environment()
    entries = [_entry(name, compilation, arguments, environment["gpu"]) for name, compilation in sources]
    if arguments.tune:
        _tune(entries)
    if not arguments.no_baselines and not isinstance(backend, TorchBackend):
        console.warn("PyTorch with CUDA is not installed: no baselines")
    record = Run(environment, command())
    interrupted = False
    builder = Builder(arguments.jobs)
    bench = Bench(backend, builder.build_all, not arguments.no_verify, not arguments.no_baselines)
    try:
        with builder, console.progress_bar("measuring") as advance:
            for row in bench.rows(entries):
                record.rows.append(row)
                advance(len(record.rows), len(entries))
                _log(record.rows, len(entries))
    except KeyboardInterrupt:
        interrupted = True
        console.warn(f"interrupted after {len(record.rows)} of {plurals.counted(len(entries), 'convolution')}")
    finally:  # also where the GPU fails: what was measured is kept
        record.peaks = {dtype: asdict(peaks) for dtype, peaks in bench.peaks.items()}
        files = {arguments.out: record.to_json().encode() + b"\n"} if arguments.out else {}
        if arguments.plot and record.rows:
            files[arguments.plot] = plot.draw(record, arguments.plot)
        write_all(files)
    _show(record, arguments)
    if interrupted:
        return 130
    return 1 if any(r.us is None for row in record.rows for r in row.results.values()) else 0


def _entry(name: str, compilation: driver.Compilation, arguments: argparse.Namespace, gpu: str) -> Entry:
    """The measurements of a convolution: as its spec says, by other strategies, in a chain, and fused."""
    from convgen.bench.build import Job
    from convgen.bench.runner import Column, Entry, with_bias_relu

    request = compilation.request
    problem, target = request.problem, compilation.target
    own = arguments.strategy or request.strategy
    options = request.options if own == request.strategy else {}
    job = Job(problem, target, own, options, True, gpu)
    columns = {own: Column(job)}
    for strategy in arguments.strategies:
        columns.setdefault(strategy, Column(Job(problem, target, strategy, {}, True, gpu)))
    if arguments.chain:
        columns["chain"] = Column(job, chained=True)
    if arguments.fused and problem.op is Op.FPROP:
        columns["fused"] = Column(replace(job, problem=with_bias_relu(problem)))
    return Entry(name, columns)


def _tune(entries: list[Entry]) -> None:
    """Tunes whatever will be measured, so that the database knows its best candidates."""
    from convgen.tune import quick

    with console.spinner("tuning") as say:
        for entry in entries:
            for column in entry.columns.values():
                quick.tune(column.job, lambda text, name=entry.name: say(f"tuning {name}: {text}"))  # type: ignore[misc]


def _log(rows: list[Row], of: int) -> None:
    """A line a row where no progress bar is seen."""
    if not console.is_terminal(sys.stderr):
        row = rows[-1]
        print(f"[{len(rows)}/{of}] {row.name} n={row.n}: {_figures(row)}", file=sys.stderr, flush=True)


def _figures(row: Row) -> str:
    if row.us is None:
        return row.own.note.splitlines()[0]
    parts = [f"{row.us:.2f} us"]
    if row.speedup:
        parts.append(f"{row.speedup:.2f} times as fast as cuDNN")
    return ", ".join(parts)


def _show(record: Run, arguments: argparse.Namespace) -> None:
    from convgen.bench.results import columns, summarize

    others = columns(record.rows)
    headers = (
        "layer", "n", "strategy", "us", "cuDNN us", "GEMM us", "TFLOP/s", "over cuDNN", "over GEMM", "roofline",
        *(f"{name} us" for name in others), *(["cuDNN fused us"] if "fused" in others else []), "configuration",
    )  # fmt: skip
    console.table(headers, [_cells(row, others) for row in record.rows])
    for row in record.rows:
        for column, result in row.results.items():
            if result.us is None:
                console.complain(f"{row.name}, {column}: {result.note}")
        for note in row.notes:
            console.warn(f"{row.name}: {note}")
    for asked in (None, *others):
        summary = summarize(record.rows, asked)
        if summary.compared:
            console.write(
                f"{f'{asked}: ' if asked else ''}geometric mean over cuDNN {_times(summary.speedup)}, "
                f"over GEMM {_times(summary.speedup_over_gemm)}; "
                f"faster than cuDNN in {summary.faster} of {summary.compared}; "
                f"worst {summary.worst} at {_times(summary.worst_speedup)}"
            )
    for path in filter(None, (arguments.out, arguments.plot)):
        console.write(f"wrote {path}")


def _cells(row: Row, others: list[str]) -> list[str]:
    share = row.roofline_share
    beside = [row.results.get(name) for name in others]
    fused = row.results.get("fused")
    return [
        row.name,
        str(row.n),
        row.own.strategy,
        _number(row.us, 2),
        _number(row.cudnn_us, 2),
        _number(row.gemm_us, 2),
        _number(row.tflops, 0),
        _times(row.speedup),
        _times(row.speedup_over_gemm),
        f"{share:.0%}" if share else "-",
        *(_number(result.us if result else None, 2) for result in beside),
        *([_number(fused.cudnn_us if fused else None, 2)] if "fused" in others else []),
        row.own.config,
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
