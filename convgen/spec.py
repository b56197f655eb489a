"""A request: a spec's text and its overrides, and how specs are read from files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from convgen import habits
from convgen.diagnostics import ConvgenError, RenamedWarning, closest, did_you_mean, warn
from convgen.ir.size import whole
from convgen.resources import MissingFiles, directory
from convgen.targets import TARGETS, Target, other_target

#: Bytes of text.
LARGEST_SPEC = 4 << 20
#: Numbers of images that calls may be said to have.
MOST_IMAGES = 1 << 16
#: What may be measured when a kernel is first built.
TUNINGS = ("quick",)


class UsageError(ConvgenError):
    """Something that was named does not exist, or cannot be read or written."""

    exit_code = 2


@dataclass(frozen=True)
class Spec:
    """A spec's text and what overrides it: `defines` its lets, `target` and `strategy` its own.

    `tune` is "quick" where the best few candidates are to be measured before one is chosen.  `only` names the
    convolutions that are wanted, or conv blocks for all of theirs; empty, all are.  `images` are the numbers of images
    that calls will have, where the spec says `dynamic n`; empty, the spec's alone is planned for.
    """

    text: str
    path: str = "<text>"
    defines: Mapping[str, int] = field(default_factory=dict)
    target: str | None = None
    strategy: str | None = None
    only: tuple[str, ...] = ()
    tune: str | None = None
    images: Collection[int] = ()

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if not isinstance(self.defines, Mapping):
            raise UsageError(
                f"defines are of type {type(self.defines).__name__}\nhint: give a dict, such as {{'n': 64}}"
            )
        # whole numbers of any kind, such as NumPy's
        defines = {str(k): v if (number := whole(v)) is None else number for k, v in self.defines.items()}
        object.__setattr__(self, "defines", defines)
        if self.target is not None:
            known_target(self.target)
        if self.strategy is not None:
            object.__setattr__(self, "strategy", known_strategy(self.strategy))
        if self.tune is not None:
            known_tuning(self.tune)
        object.__setattr__(self, "images", known_images(self.images))


#: Real paths of the files that were read as specs, and which file, of which time and size, each was.
_files_read: dict[str, tuple[int, ...]] = {}


def _state(file: os.stat_result) -> tuple[int, ...]:
    return file.st_dev, file.st_ino, file.st_mtime_ns, file.st_size


def was_read(path: str | os.PathLike[str]) -> bool:
    """Whether a path leads, also by a link, to a file that was read as a spec and is as it was then: no output takes
    its place."""
    with suppress(OSError, ValueError):
        return _files_read.get(os.path.realpath(path)) == _state(os.stat(path))
    return False


def read(source: str | os.PathLike[str]) -> tuple[str, str]:
    """Text and path of a spec given as a path, or as text (anything with a brace or a line break).

    Raises UsageError.
    """
    if not isinstance(source, str | os.PathLike):
        raise UsageError(f"the spec is of type {type(source).__name__}\nhint: give its path, or its text")
    if isinstance(source, str) and ("{" in source or "\n" in source or not source.strip()):
        return source, "<text>"
    return read_file(source), os.fspath(source)


def read_file(name: str | os.PathLike[str]) -> str:
    """The text of a spec's file.  Raises UsageError."""
    path = Path(name)
    try:
        if not os.fspath(name):  # which a Path takes for the folder at hand
            raise UsageError("'': no such file")
        with open(path, "rb") as file:
            data, state = file.read(LARGEST_SPEC + 1), _state(os.fstat(file.fileno()))
        if len(data) > LARGEST_SPEC:
            raise UsageError(f"{path}: too large for a spec, which is at most {LARGEST_SPEC >> 20} MiB of text")
        text = decoded(data, str(path))
        _files_read[os.path.realpath(path)] = state
        return text
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file{_nearby(path)}") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a folder\nhint: name a .conv file{_specs_in(path)}") from None
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from None
    except ValueError as e:  # a NUL in the name
        raise UsageError(f"{str(path)!r}: not a path: {e}") from None


def decoded(data: bytes, name: str) -> str:
    """A spec's text.  Raises UsageError."""
    try:
        text = data.decode("utf-8")
        at = text.find("\0", 0, 2)  # as UTF-16 begins
    except UnicodeDecodeError as e:
        at = e.start
    if at >= 0:
        is_kernel = name.endswith(".kernel")  # as `compile --emit kernel` calls them
        hint = "a saved kernel is loaded in Python: convgen.load" if is_kernel else "a spec is plain text, in UTF-8"
        raise UsageError(f"{name}: not UTF-8 text (byte {at})\nhint: {hint}")
    return text


def known_target(name: str) -> Target:
    """Raises UsageError."""
    if not isinstance(name, str) or name not in TARGETS:
        raise UsageError(unknown("target", name, TARGETS, other_target(str(name), TARGETS)))
    return TARGETS[name]


def known_strategy(name: str) -> str:
    """A strategy's present name, or auto; one that it had is warned of.  Raises UsageError."""
    from convgen.kernels import renamed, strategies

    if isinstance(name, str) and (now := renamed.strategy(name)) != name:
        warn(f"the strategy `{name}` is now `{now}`", RenamedWarning)
        name = now
    known = ("auto", *strategies.NAMES)
    if not isinstance(name, str) or name not in known:
        hint = _as_kernel(name) or habits.did_you_mean(str(name), known, habits.STRATEGIES)
        raise UsageError(unknown("strategy", name, known, hint))
    return name


def _as_kernel(name: object) -> str | None:
    """A hint where a strategy's kernel is named."""
    from convgen.kernels import registry, strategies

    for strategy in strategies.NAMES:
        if any(row.name == name for row in registry.kernels_of(strategy)):
            return f"it is a kernel of {strategy}: write `strategy {strategy} {{ kernel {name} }}` in the spec"
    return None


def known_tuning(name: str) -> str:
    """Raises UsageError."""
    if not isinstance(name, str) or name not in TUNINGS:
        raise UsageError(unknown("tuning", name, TUNINGS))
    return name


def known_images(images: Iterable[int]) -> tuple[int, ...]:
    """Numbers of images, each once, in rising order; none for (), which says nothing.  Raises UsageError."""
    several = isinstance(images, Iterable) and not isinstance(images, str | bytes)
    numbers = [whole(n) or 0 for n in islice(images, MOST_IMAGES + 1)] if several else [0]
    none = not numbers and not isinstance(images, tuple)
    if none or len(numbers) > MOST_IMAGES or not all(1 <= n < 1 << 31 for n in numbers):
        try:
            said = str(images)
        except ValueError:  # of a number of thousands of digits
            said = f"a {type(images).__name__}"
        raise UsageError(
            f"images={said if len(said) <= 40 else f'{said[:37]}...'}: expected 1 to {MOST_IMAGES} whole numbers "
            f"from 1 to {(1 << 31) - 1}\nhint: give the numbers of images that calls will have, such as range(1, 65)"
        )
    return tuple(sorted(set(numbers)))


def unknown(kind: str, name: object, known: Iterable[str], hint: str | None = None) -> str:
    """The message about an unknown name; by default, the hint is a similar known name, or all of them."""
    known = list(known)
    hint = hint or did_you_mean(str(name), known) or f"choose from {', '.join(known)}"
    said = repr(name)
    return f"unknown {kind} {said if len(said) <= 200 else f'{said[:197]}...'}\nhint: {hint}"


def _specs_in(folder: Path) -> str:
    found = sorted(p.name for p in folder.glob("*.conv"))
    return f", such as {folder / found[0]}" if found else ""


def _nearby(path: Path) -> str:
    """A hint where there is a spec of that name among those that ship, or of a similar name in the folder."""
    hint: Path | None = None
    with suppress(OSError, ValueError):
        stems = [p.stem for p in path.parent.glob("*.conv")]
        if close := path.name if path.name in stems else closest(path.stem, stems):
            hint = path.with_name(f"{close}.conv")
    with suppress(MissingFiles):
        shipped = [p for p in sorted(directory("specs").rglob("*.conv")) if p.stem == path.stem]
        hint = max(shipped, key=lambda p: (p.parent.name == path.parent.name, -len(p.parts)), default=hint)
    return f"\nhint: did you mean `{hint}`?" if hint else ""
