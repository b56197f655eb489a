"""Show targets (GPU architectures), strategies, their options, and suites (specs that ship with
convgen).  Without an argument, show all but the options.

examples:
  convgen list
  convgen list targets
  convgen list options              the options of every strategy
  convgen list options tma_im2col   what a block `strategy tma_im2col` may set
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from convgen import plurals
from convgen.cli import console
from convgen.spec import UsageError, known_strategy

#: Specs of a folder that are named.
_SHOWN = 6


def configure(parser: argparse.ArgumentParser) -> None:
    help = "default: targets, strategies and suites"
    parser.add_argument("what", nargs="?", type=_what, choices=(*_LISTS, "options"), help=help)
    parser.add_argument("strategy", nargs="?", metavar="STRATEGY", help="the strategy whose options to show")


def _what(word: str) -> str:
    """Raises UsageError for a strategy where something else is expected."""
    from convgen.kernels import strategies

    if word in strategies.NAMES:
        raise UsageError(f"`{word}` is a strategy\nhint: `convgen list options {word}` lists its options")
    return word


def run(arguments: argparse.Namespace) -> int:
    if arguments.what == "options":
        _options(arguments.strategy)
        return 0
    if arguments.strategy:
        from convgen.kernels import strategies

        name = arguments.strategy
        has_options = arguments.what == "strategies" and name in strategies.NAMES
        hint = f"`convgen list options {name}`" if has_options else f"leave out `{name}`"
        raise UsageError(f"`{arguments.what}` takes no name\nhint: {hint}")
    for i, (name, show) in enumerate(_LISTS.items()):
        if arguments.what in (None, name):
            if i and arguments.what is None:
                console.write("")
            show()
    return 0


def _targets() -> None:
    from convgen.targets import DEFAULT_TARGET, TARGETS

    rows = [
        (
            t.name + (" (default)" if t.name == DEFAULT_TARGET else ""),
            str(t.gpu),
            f"{t.shared_bytes_per_block >> 10} KiB",
            ", ".join(sorted(t.features)),
        )
        for t in TARGETS.values()
    ]
    console.table(("target", "such as", "shared memory", "instructions"), rows)


def _strategies() -> None:
    from convgen.kernels import strategies
    from convgen.kernels.registry import kernels_of

    rows = [
        (name, ", ".join(row.name for row in kernels_of(name)), s.summary) for name, s in strategies.STRATEGIES.items()
    ]
    console.table(("strategy", "kernels", "what it is"), rows)


def _options(strategy: str | None) -> None:
    from convgen.kernels import strategies
    from convgen.kernels.config import option_rows
    from convgen.kernels.registry import kernels_of

    names = [known_strategy(strategy)] if strategy else list(strategies.NAMES)
    if "auto" in names:
        raise UsageError("`auto` has no options: it chooses\nhint: name a strategy, such as tma_im2col")
    rows = []
    for name in names:
        kernels = kernels_of(name)
        if len(kernels) > 1:
            kernel = strategies.STRATEGIES[name].options[0]
            rows.append((name, "", kernel.name, kernel.legal, kernel.doc))
        own = [(row.name, o) for row in kernels for o in option_rows(row.config)]
        rows += [(name, kernel, o.name, o.legal, o.doc) for kernel, o in own]
    console.table(("strategy", "kernel", "option", "values", "meaning"), rows)


def _suites() -> None:
    from convgen.bench import suites

    rows = [(name, plurals.counted(len(suites.find(name)), "spec"), _about(name)) for name in suites.names()]
    console.table(("suite", "specs", "what it is"), rows)


def _about(suite: str) -> str:
    """The first sentence of a spec's first comment; of a folder, the names of its specs."""
    from convgen.bench import suites

    found = suites.find(suite)
    if len(found) > 1:
        names = [path.stem for path in found]
        return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])
    return " ".join(_comment(found[0].read_text(encoding="utf-8"))).partition(": ")[0].rstrip(".")


def _comment(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.startswith("#"):
            return
        yield line.lstrip("# ")


_LISTS: dict[str, Callable[[], None]] = {"targets": _targets, "strategies": _strategies, "suites": _suites}
