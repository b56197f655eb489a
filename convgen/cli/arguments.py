"""Arguments that commands share, and a parser whose errors say what to do."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from convgen import habits
from convgen.cli import console
from convgen.diagnostics import SpecError, did_you_mean
from convgen.spec import (
    MOST_IMAGES,
    Spec,
    UsageError,
    decoded,
    known_strategy,
    known_target,
    known_tuning,
    read_file,
    unknown,
)

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class _Once(argparse._StoreAction):
    """Stores an option's value; another value for the same option is an error."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        if option_string and getattr(namespace, self.dest) not in (self.default, values):
            raise argparse.ArgumentError(self, "given twice, with different values")
        super().__call__(parser, namespace, values, option_string)


class _Define(argparse._AppendAction):
    """Collects defines; another value for the same name is an error."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        name, value = values
        before = dict(getattr(namespace, self.dest)).get(name, value)
        if before != value:
            raise argparse.ArgumentError(self, f"{name} is given twice, as {before} and {value}")
        super().__call__(parser, namespace, values, option_string)


class Parser(argparse.ArgumentParser):
    """Raises UsageError instead of leaving the process."""

    #: What else its options are called.
    others = habits.ARGUMENTS
    #: What takes the place of options that it lacks.
    instead = habits.NO_ARGUMENTS

    def __init__(self, **settings) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)
        self.register("action", None, _Once)
        self._negative_number_matcher = re.compile(r"-\d[-\d.,]*$")  # lists, too: --load -1,0,0,0

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        """Raises UsageError where standard output takes no more, which argparse itself does not look at."""
        if file is sys.stdout:
            console.write(message.removesuffix("\n"))
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        hint = f"`{self.prog} --help` lists the options"
        if unknown := re.match(r"unrecognized arguments: (--?[^\s=]+)(?:[\s=]([^\s-]\S*))?", message):
            known = self._option_string_actions
            hint = habits.did_you_mean(unknown[1], known, self.others) or hint
            word = habits.plain(unknown[1])
            if word in ("o", "output") and "--out" in known:
                hint = "did you mean `--out`?"
            elif self.others.get(word) not in known:
                hint = self.instead.get(word, hint)
            device = habits.device(habits.plain(unknown[2] or "") if word in ("device", "backend") else word)
            if device and "--device" in known:
                hint = f"write `--device {device}`"
            elif device == "emulate" and word != "host":  # compile's --emit host is none
                hint = "`convgen run --device emulate` runs kernels on the CPU"
        if choice := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            hint = did_you_mean(choice[1], re.findall(r"\w+", choice[2])) or hint
        raise UsageError(message if "\nhint: " in message else f"{message}\nhint: {hint}")


#: What names specs.
SPECS = "a .conv file, or a folder for all .conv files in it; - reads standard input"


def define(text: str) -> tuple[str, int]:
    """`n=64`."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        meant = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*[:= ]\s*([0-9]{1,20})\s*", text, re.ASCII)
        hint = f"\nhint: write -D {meant[1]}={meant[2]}" if meant else ""
        raise argparse.ArgumentTypeError(f"{short(text)} is not NAME=INTEGER, such as n=64{hint}")
    if re.fullmatch(r"[0-9]{1,20}(,\w+=[0-9]{1,20})+", value):
        hint = "\nhint: write -D for each: " + " ".join(f"-D {one}" for one in text.split(","))
        raise argparse.ArgumentTypeError(f"{short(text)} is several defines in one{hint}")
    if not re.fullmatch(r"[+-]?[0-9]{1,100}", value):
        raise argparse.ArgumentTypeError(f"{name}={short(value)}: the value must be a whole number, such as {name}=64")
    return name, int(value)


def jobs(text: str) -> int:
    """How many processes."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a number of processes, such as 4")
    return int(text)


def one_of(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Reads a list of known names, separated by commas."""

    def read(text: str) -> tuple[str, ...]:
        found = names(text)
        for name in found:
            if name not in known:
                hint = did_you_mean(name, known) or f"choose from {', '.join(known)}"
                raise argparse.ArgumentTypeError(f"unknown {short(name)}\nhint: {hint}")
        return tuple(dict.fromkeys(found))

    return read


def names(text: str) -> list[str]:
    """Reads a list of names, separated by commas."""
    if not (found := [name for part in text.split(",") if (name := part.strip())]):
        raise argparse.ArgumentTypeError("it names nothing\nhint: leave it out, or separate names by commas")
    return found


def add_specs(parser: argparse.ArgumentParser, nargs: str = "+") -> None:
    """Specs, which convolutions of them are wanted, and values for their lets."""
    parser.add_argument("specs", nargs=nargs, metavar="SPEC", help=SPECS)
    add_defines(parser)
    add_only(parser)


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Adds the options that override a spec's target and strategy."""
    parser.add_argument(
        "--target", type=_usage(lambda name: known_target(name).name), metavar="ARCH",
        help="GPU architecture, such as sm_90a (default: the spec's, else this machine's GPU, else sm_90a)",
    )  # fmt: skip
    parser.add_argument(
        "--strategy", type=_usage(known_strategy), metavar="NAME",
        help="the strategy, such as tma_im2col; with auto, convgen chooses (default: the spec's, else auto)",
    )  # fmt: skip


def add_only(parser: argparse.ArgumentParser) -> None:
    """Adds the option that selects convolutions by name."""
    parser.add_argument(
        "--only", action="extend", type=names, default=[], metavar="CONVS",
        help="process only these convolutions or conv blocks, separated by commas",
    )  # fmt: skip


def add_defines(parser: argparse.ArgumentParser) -> None:
    """Values for the lets of a spec."""
    parser.add_argument(
        "-D", "--define", dest="defines", type=define, action=_Define, default=[], metavar="NAME=INTEGER",
        help="override a `let` of the spec: -D n=64",
    )  # fmt: skip


def file(text: str) -> Path:
    """The path of a file; an empty one, of a variable that is not set, would be taken for the folder it runs in."""
    if not text:
        raise argparse.ArgumentTypeError("it names no file")
    return Path(text)


def add_tune(parser: argparse.ArgumentParser) -> None:
    """Whether to measure before a configuration is chosen."""
    parser.add_argument(
        "--tune", type=_usage(known_tuning), metavar="HOW",
        help="quick: if nothing was measured on this GPU yet, measure the best few candidates for up to a second",
    )  # fmt: skip


def add_images(parser: argparse.ArgumentParser) -> None:
    """How many images calls will have, where they decide that."""
    parser.add_argument(
        "--images", type=_images, default=(), metavar="NUMBERS",
        help="for a spec with `dynamic n`, the numbers of images that calls will have, such as 1-64 or 1,8,64; "
        "these get up to four plans",
    )  # fmt: skip


def _images(text: str) -> tuple[int, ...]:
    found: list[range] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?\s*", part)
        found.append(range(int(ends[1]), int(ends[2] or ends[1]) + 1) if ends else range(0))
    if not all(part and part[0] for part in found):
        wanted = "numbers of images from 1 on, the smaller one first, such as 1-64 or 1,8,64"
        raise argparse.ArgumentTypeError(f"{short(text)} does not list {wanted}")
    if sum(map(len, found)) > MOST_IMAGES:
        raise argparse.ArgumentTypeError(f"{short(text)} lists more than {MOST_IMAGES} numbers of images")
    return tuple(n for part in found for n in part)


def paths(arguments: argparse.Namespace) -> list[str]:
    """The files that the arguments name, each once, or `-`.  Raises UsageError."""
    if arguments.specs.count("-") > 1:
        raise UsageError("standard input can be read once: `-` is given twice")
    named: list[str] = []
    for name in arguments.specs:
        named += _specs_in(name) if name != "-" and os.path.isdir(name) else [name]
    files = dict[str, str]()
    for path in named:
        files.setdefault(_leads_to(path), path)
    return list(files.values())


def _leads_to(path: str) -> str:
    """The file that a name leads to; for standard input, and for anything that is not a file, the name itself."""
    try:
        return path if path == "-" else os.path.realpath(path)
    except (OSError, ValueError):
        return path


def _specs_in(folder: str) -> list[str]:
    """The specs in a folder, sorted by name.  Raises UsageError if there are none."""
    try:
        inside = list(Path(folder).iterdir())
    except OSError as e:
        raise UsageError(f"{folder}: cannot be read: {e.strerror or e}") from None
    found = sorted(str(path) for path in inside if path.suffix == ".conv" and os.path.isfile(path))
    if not found:
        raise UsageError(f"{folder}: is a folder without a .conv file")
    return found


def read_specs(arguments: argparse.Namespace, more: Iterable[str] = ()) -> list[Spec]:
    """The specs that the arguments name, and more by their paths; of several, those that have a convolution of --only.

    Raises UsageError, and SpecError where that has to be known of a spec with errors."""
    found = [read_spec(arguments, path) for path in (*paths(arguments), *more)]
    return narrowed(found, arguments.only)


def narrowed(specs: Sequence[Spec], only: Sequence[str], with_errors: bool = False) -> list[Spec]:
    """Several specs, each narrowed to those of the names that it has, if any; `with_errors`, also those whose names are
    not known for their errors.  Raises UsageError, SpecError."""
    if len(specs) < 2 or not only:
        return [*specs]
    found, known, unsure = [], dict[str, None](), False
    for spec in specs:
        try:
            has = _convolutions(spec)
        except SpecError:
            if not with_errors:
                raise
            found.append(replace(spec, only=()))
            unsure = True
            continue
        known |= dict.fromkeys(has)
        if own := tuple(name for name in only if name in has):
            found.append(replace(spec, only=own))
    for name in only:
        if name not in known and not unsure:
            raise UsageError(unknown("convolution", name, known))
    return found


def _convolutions(spec: Spec) -> list[str]:
    """The names of a spec's convolutions, and of their blocks.  Raises SpecError."""
    from convgen.driver import load

    whole = replace(spec, only=())
    try:
        found = load(whole)
    except SpecError:
        if not spec.defines:
            raise
        found = load(replace(whole, defines={}))  # the spec may lack a let that another one has
    return [name for c in found for name in (c.request.conv, c.name)]


def read_spec(arguments: argparse.Namespace, path: str) -> Spec:
    """A spec with the overrides that the arguments name.  Raises UsageError."""
    if re.fullmatch(r"[A-Za-z_]\w*=[0-9]+", path, re.ASCII) and not os.path.exists(path):
        raise UsageError(f"{path}: no such file\nhint: write -D {path}")
    text, path = read_text(path)
    defines, only = dict(arguments.defines), tuple(arguments.only)
    target, strategy, tune = (getattr(arguments, name, None) for name in ("target", "strategy", "tune"))
    return Spec(text, path, defines, target, strategy, only, tune, getattr(arguments, "images", ()))


def read_text(path: str) -> tuple[str, str]:
    """Text and name of a file, or of standard input where the path is `-`.  Raises UsageError."""
    return (_standard_input(), "<stdin>") if path == "-" else (read_file(path), path)


def _standard_input() -> str:
    try:
        data = sys.stdin.buffer.read()
    except (AttributeError, OSError):
        raise UsageError("standard input cannot be read") from None
    return decoded(data, "standard input")


def _usage(check: Callable[[str], str]) -> Callable[[str], str]:
    """A check that raises UsageError, as argparse wants it."""

    def read(text: str) -> str:
        try:
            return check(text)
        except UsageError as e:
            raise argparse.ArgumentTypeError(str(e)) from None

    return read


def short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
