"""Write a spec of one convolution.  On a terminal, the command asks for everything that no option sets, and asks
again if an answer does not fit the earlier ones.  Elsewhere, the rest takes its defaults; --size, -c and -k have
none and must be given.  The file must not exist yet.  `-` writes to standard output.

examples:
  convgen init layer.conv                                        asks for everything
  convgen init layer.conv --size 56x56 -c 64 -k 128              3x3, stride 1, padded to keep the size
  convgen init stem.conv --size 224x224 -c 3 -k 64 --window 7x7 --stride 2 --bias --activation relu
  convgen init layer.conv --size 56x56 -c 64 -k 64 --groups 64   depthwise
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convgen import driver, habits
from convgen.cli import console
from convgen.cli.arguments import Parser, file, short
from convgen.diagnostics import SpecError
from convgen.files import check_writable, write_all
from convgen.frontend.names import MAX_LENGTH
from convgen.frontend.types import ACCUMULATOR_OF
from convgen.frontend.wording import KEYWORDS
from convgen.functional.pointwise import ACTIVATIONS
from convgen.ir.problem import OPS, SPATIAL, Op, identifier
from convgen.spec import Spec, UsageError

#: Element types of results that are not the type of what is read.
_RESULT_TYPES = {"s8": "s32", "e4m3": "f32", "e5m2": "f32"}
_BIAS_TYPES = {"f64": "f64"}
_LAYOUTS = ("channels_last", "channels_first")
_SAME = "same"


def _whole(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{short(text)} is not a whole number from 1 to 999999999")
    return int(text)


def _extents(text: str) -> tuple[int, ...]:
    """`56x56`: one to three numbers."""
    if not re.fullmatch(r"[0-9]{1,9}(x[0-9]{1,9}){0,2}", text):
        meant = re.sub(r"[\s(),*X×x]+", " ", text).split()
        known = 1 <= len(meant) <= 3 and all(re.fullmatch(r"[0-9]+", m) for m in meant)
        if known and any(len(m) > 9 for m in meant):
            raise argparse.ArgumentTypeError(f"{short(text)} has a number above 999999999")
        hint = f"\nhint: write {'x'.join(meant)}" if known else ""
        raise argparse.ArgumentTypeError(f"{short(text)} is not one number, or up to three, such as 3x3{hint}")
    return tuple(map(int, text.split("x")))


def _positive(text: str) -> tuple[int, ...]:
    if 0 in (numbers := _extents(text)):
        raise argparse.ArgumentTypeError(f"{short(text)} has a 0: the least is 1")
    return numbers


def _padding(text: str) -> tuple[int, ...] | str:
    if (word := text.lower()) in (_SAME, "valid"):
        return _SAME if word == _SAME else (0,)
    return _extents(text)


def _among(known: Sequence[str], others: Mapping[str, str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            hint = habits.did_you_mean(text, known, others) or f"choose from {', '.join(known)}"
            raise argparse.ArgumentTypeError(f"unknown {short(text)}\nhint: {hint}")
        return text

    return read


def _operator(text: str) -> str:
    if habits.plain(text) in ("transposed", "transpose", "deconv"):
        hint = "hint: write a spec with `op transposed` by hand: docs/language.md has one"
        raise argparse.ArgumentTypeError(f"init writes no transposed convolutions\n{hint}")
    return _among([str(op) for op in OPS if op in (Op.FPROP, Op.DGRAD, Op.WGRAD)], habits.OPS)(text)


def _whether(text: str) -> bool:
    return _among(("no", "yes", "n", "y"), {})(text.lower()).startswith("y")


@dataclass(frozen=True)
class Question:
    """One thing that a spec says: how the command line asks for it, and a person is.  None: it must be answered."""

    flags: tuple[str, ...]
    text: str
    default: str | None
    read: Callable[[str], Any]
    metavar: str

    @property
    def name(self) -> str:
        return self.flags[-1].lstrip("-")


QUESTIONS: tuple[Question, ...] = (
    Question(("--size",), "extents of the input, such as 56x56", None, _positive, "HxW"),
    Question(("-c", "--channels"), "channels of the input", None, _whole, "C"),
    Question(("-k", "--filters"), "channels of the output", None, _whole, "K"),
    Question(("-n", "--batch"), "images per batch", "8", _whole, "N"),
    Question(("--window",), "extents of the filter", "3", _positive, "RxS"),
    Question(("--stride",), "stride", "1", _positive, "S"),
    Question(("--dilation",), "dilation", "1", _positive, "D"),
    Question(("--pad",), "padding on each side; `same` keeps the size at stride 1", _SAME, _padding, "P"),
    Question(("--groups",), "groups of channels", "1", _whole, "G"),
    Question(("--dtype",), "element type", "f16", _among(tuple(ACCUMULATOR_OF), habits.TYPES | {"s32": "s8"}), "TYPE"),
    Question(("--layout",), "memory layout, channels_last or channels_first", _LAYOUTS[0],
             _among(_LAYOUTS, habits.LAYOUTS), "LAYOUT"),
    Question(("--activation",), "activation, such as relu, or none", "none",
             _among(("none", *ACTIVATIONS), habits.ACTIVATIONS), "ACTIVATION"),
    Question(("--op",), "what to compute: fprop (y), dgrad (x) or wgrad (w)", "fprop",
             _operator, "OP"),
    Question(("--bias",), "add one value per output channel (for dgrad, per channel of x)", "no", _whether, ""),
    Question(("--residual",), "add a tensor of the result's shape", "no", _whether, ""),
)  # fmt: skip


def _path(text: str) -> str:
    file(text)
    return text


def configure(parser: Parser) -> None:
    parser.others = habits.LAYER_ARGUMENTS
    parser.instead = dict.fromkeys(("o", "output"), "name the file without an option: `convgen init FILE`")
    parser.add_argument("path", metavar="SPEC", nargs="?", type=_path, default="layer.conv", help="default: layer.conv")
    for q in QUESTIONS:
        default = f" (default: {q.default})" if q.default else ""
        if q.read is _whether:
            parser.add_argument(*q.flags, dest=q.name, action="store_const", const=True, help=q.text)
        else:
            parser.add_argument(*q.flags, dest=q.name, type=q.read, metavar=q.metavar, help=q.text + default)


def run(arguments: argparse.Namespace) -> int:
    path = Path(arguments.path)
    to_file = arguments.path != "-"
    if to_file:
        if os.path.isfile(path):
            raise UsageError(f"{path}: exists already\nhint: name another file, or remove it")
        check_writable(path)
    answers = _answers(arguments)
    layer = Layer(_name_of(path) if to_file else "layer", answers)
    with console.spinner("checking"):
        text = layer.checked()
    if not to_file:
        console.write(text.rstrip("\n"))
        return 0
    write_all({path: text.encode()})
    # a name that begins like an option's is no argument
    said = shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))
    console.write(f"wrote {path}\n\nnext:\n  convgen explain {said}\n  convgen run {said}\n  convgen compile {said}")
    return 0


def _name_of(path: Path) -> str:
    """The convolution's, by the file's."""
    name = identifier(path.stem)[: MAX_LENGTH - 1]
    return f"{name}_" if name in KEYWORDS else name


def _answers(arguments: argparse.Namespace) -> dict[str, Any]:
    """The answers by the questions' names.  Raises UsageError if nobody can be asked for an answer without a default,
    or if the given answers contradict each other, so that no answer would help."""
    given = {q.name: getattr(arguments, q.name) for q in QUESTIONS}
    missing = [q for q in QUESTIONS if q.default is None and given[q.name] is None]
    asks = bool(missing) and console.is_terminal(sys.stdin)
    if missing and not asks:
        said = ", ".join(q.flags[0] for q in missing)
        raise UsageError(f"{said} must be given\nhint: for example, --size 56x56 -c 64 -k 128")
    if asks:
        Layer("layer", _completed(given)).checked()
    for q in QUESTIONS:
        if given[q.name] is None:
            given[q.name] = _ask(q, given) if asks else q.read(q.default or "")
    return given


def _completed(given: Mapping[str, Any]) -> dict[str, Any]:
    """The given answers; the others are filled in to fit most of them."""
    others = {q.name: q.read(q.default) for q in QUESTIONS if q.default is not None} | {"window": (1,)}
    rank = max((len(value) for value in given.values() if isinstance(value, tuple)), default=1)
    channels = given["groups"] or 1
    others |= {"channels": channels, "filters": channels}
    made: dict[str, Any] = {name: others.get(name) if value is None else value for name, value in given.items()}
    least = (max(made["window"]) - 1) * max(made["dilation"]) + 1
    return made | {"size": made["size"] or (least,) * rank}


def _ask(question: Question, given: Mapping[str, Any]) -> Any:
    """A person's answer; asks again if it is wrong, or impossible with the other answers."""
    default = f" [{question.default}]" if question.default else ""
    while True:
        try:
            text = input(f"{question.text}{default}: ").strip() or question.default or ""
        except EOFError:
            raise UsageError("no answer: nothing was written") from None
        try:
            answer = question.read(text)
            Layer("layer", _completed({**given, question.name: answer})).checked()
            return answer
        except (argparse.ArgumentTypeError, UsageError) as e:
            console.complain(str(e))


@dataclass(frozen=True)
class Layer:
    """A convolution, as the answers have it."""

    name: str
    answers: dict[str, Any]

    def checked(self) -> str:
        """The spec, which the compiler takes.  Raises UsageError where answers do not go together."""
        text = self.text()
        try:
            driver.check_served(driver.load(Spec(text)))
        except SpecError as e:
            first = e.diagnostics[0]
            raise UsageError(first.message + (f"\nhint: {first.hint}" if first.hint else "")) from None
        return text

    def text(self) -> str:
        """The spec, as the answers have it.  Raises UsageError where they do not go together."""
        a, sizes = self.answers, self.answers["size"]
        axes = SPATIAL[len(sizes)]
        window, dilation = self._by_axis("window"), self._by_axis("dilation")
        dtype, c, k, groups = a["dtype"], a["channels"], a["filters"], a["groups"]
        if c % groups or k % groups:
            raise UsageError(f"--groups {groups} does not divide -c {c} and -k {k}")
        op = Op(a["op"])
        result = _RESULT_TYPES.get(dtype, dtype)
        x, w, y = (result if role == OPS[op].writes else dtype for role in "xwy")
        lines = [
            f"let n = {a['batch']}",
            "",
            f"conv {self.name} {{",
            f"  input  x: {x}[{self._dims('n', f'c={c}', axes.input, sizes)}]",
            f"  filter w: {w}[{self._dims(f'k={k}', f'c={c // groups}', axes.filter, window)}]",
            f"  output y: {y}[{self._dims('n', 'k', axes.output, None)}]",
            *self._amounts("stride", axes.input, [(s, s) for s in self._by_axis("stride")], (1, 1)),
            *self._amounts("pad", axes.input, self._pads(window, dilation), (0, 0)),
            *self._amounts("dilation", axes.input, [(d, d) for d in dilation], (1, 1)),
            *([f"  groups {groups}"] if groups > 1 else []),
            *self._epilogue(result, axes.input, axes.filter, axes.output),
            *([f"  op {op}"] if op is not Op.FPROP else []),
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _by_axis(self, name: str) -> tuple[int, ...]:
        """One number an axis: one number is every axis's."""
        values, rank = self.answers[name], len(self.answers["size"])
        if len(values) not in (1, rank):
            raise UsageError(f"--{name} has {len(values)} numbers, and --size {rank}\nhint: give one, or one per axis")
        return tuple(values) * (rank // len(values))

    def _dims(self, first: str, channels: str, axes: Sequence[str], extents: Sequence[int] | None) -> str:
        spatial = axes if extents is None else [f"{d}={e}" for d, e in zip(axes, extents, strict=True)]
        last = self.answers["layout"] == _LAYOUTS[0]
        return ", ".join([first, *spatial, channels] if last else [first, channels, *spatial])

    def _pads(self, window: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
        if self.answers["pad"] != _SAME:
            return [(p, p) for p in self._by_axis("pad")]
        totals = [(w - 1) * d for w, d in zip(window, dilation, strict=True)]
        return [(t // 2, t - t // 2) for t in totals]

    def _amounts(
        self, setting: str, axes: Sequence[str], values: Sequence[tuple[int, int]], default: tuple[int, int]
    ) -> list[str]:
        """A setting of every axis or by axis; none where it says the default."""
        said = [str(low) if low == high else f"({low}, {high})" for low, high in values]
        if set(values) == {default}:
            return []
        if len(set(values)) == 1:
            return [f"  {setting} {said[0]}"]
        return [f"  {setting} " + " ".join(f"{d}={v}" for d, v in zip(axes, said, strict=True))]

    def _epilogue(self, dtype: str, *axes: Sequence[str]) -> list[str]:
        """The epilogue for the tensor that the operator computes."""
        activation = ACTIVATIONS.get(self.answers["activation"])
        bias, residual = self.answers["bias"], self.answers["residual"]
        if not (bias or residual or activation):
            return []
        op = Op(self.answers["op"])
        role = OPS[op].writes
        leading, channel = {"x": ("n", "c"), "w": ("k", "c"), "y": ("n", "k")}[role]
        dims = self._dims(leading, channel, axes["xwy".index(role)], None)
        value = "acc" + " + b" * bias + " + z" * residual
        if activation:
            value = activation.text.format(*activation.defaults, t=f"({value})" if " " in value else value)
            value = re.sub(r"\(\(([^()]*)\)", r"(\1", value)  # a call's own parentheses are enough
        return [
            "",
            "  epilogue {",
            *([f"    operand b: {_BIAS_TYPES.get(dtype, 'f32')}[{'c' if role == 'x' else 'k'}]"] if bias else []),
            *([f"    operand z: {dtype}[{dims}]"] if residual else []),
            f"    {role} = {value}",
            "  }",
        ]
