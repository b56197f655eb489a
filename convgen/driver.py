"""The passes, in order: from a spec's text to kernels.

    load      text -> requests (parse, check)           frontend
    choose    request -> strategy and options           planner
    plan      problem -> plan                           strategy
    render    plan -> CUDA source                       strategy, templates
    build     source -> cubin and ptxas's figures       NVRTC, cached by content

`load` gives a spec's compilations; each runs a pass when the pass's record is first asked for.  What was asked before
is answered from the cache without any of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

from convgen.diagnostics import ConvgenError, Diagnostic, SpecError, closest, did_you_mean, listing
from convgen.resources import directory
from convgen.targets import DEFAULT_TARGET, TARGETS, Target, target_for

if TYPE_CHECKING:
    from convgen.cache import Cache
    from convgen.explain import Explanation
    from convgen.frontend import Request
    from convgen.ir.plan import Plan
    from convgen.kernels.base import Obstacle
    from convgen.planner import CannotServe, Choice
    from convgen.runtime.artifacts import Artifact
    from convgen.runtime.kernel import Kernel

#: Each pass and the record of a `Compilation` that it makes.
PASSES: dict[str, str] = {"load": "request", "choose": "choice", "plan": "plan", "render": "source"}
#: Bytes of text.
LARGEST_SPEC = 4 << 20


class UsageError(ConvgenError):
    """Something that was named does not exist, or cannot be read or written."""

    exit_code = 2


@dataclass(frozen=True)
class Spec:
    """A spec's text and what overrides it: `defines` its lets, `target` and `strategy` its own.

    `only` names the convolutions that are wanted, or conv blocks for all of theirs; empty, all are.
    """

    text: str
    path: str = "<text>"
    defines: Mapping[str, int] = field(default_factory=dict)
    target: str | None = None
    strategy: str | None = None
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if not isinstance(self.defines, Mapping):
            raise UsageError(
                f"defines are of type {type(self.defines).__name__}\nhint: give a dict, such as {{'n': 64}}"
            )
        # whole numbers of any kind, such as NumPy's
        whole = {str(k): index(v) if hasattr(v, "__index__") else v for k, v in self.defines.items()}
        object.__setattr__(self, "defines", whole)
        if self.target is not None:
            known_target(self.target)
        if self.strategy is not None:
            known_strategy(self.strategy)


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
            data = file.read(LARGEST_SPEC + 1)
        if len(data) > LARGEST_SPEC:
            raise UsageError(f"{path}: too large for a spec, which is at most {LARGEST_SPEC >> 20} MiB of text")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file{_nearby(path)}") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a folder\nhint: name a .conv file{_specs_in(path)}") from None
    except UnicodeDecodeError as e:
        raise UsageError(f"{path}: not UTF-8 text (byte {e.start})\nhint: a spec is a plain text file") from None
    except OSError as e:
        raise UsageError(f"{path}: cannot be read: {e.strerror or e}") from None
    except ValueError as e:  # a NUL in the name
        raise UsageError(f"{str(path)!r}: not a path: {e}") from None


class Compilation:
    """One convolution of a spec on its way through the passes."""

    def __init__(self, spec: Spec, request: Request) -> None:
        self.spec, self.request = spec, request

    @property
    def name(self) -> str:
        return self.request.problem.name

    @cached_property
    def target(self) -> Target:
        """What the command line or the spec names, else the GPU at hand, else the default."""
        name = self.spec.target or self.request.target
        return known_target(name) if name else target_at_hand()

    @property
    def gpu(self) -> str | None:
        """The name of the GPU at hand, where the kernel can run on it: what was tuned there is taken first."""
        from convgen.runtime.launch import gpu_at_hand

        found = gpu_at_hand()
        return found.name if found and self.target.runs_on(found.capability) else None

    @cached_property
    def choice(self) -> Choice:
        """Raises SpecError, with every obstacle of every strategy that was asked for."""
        from convgen import planner

        request = self.request
        name = self.spec.strategy or request.strategy
        options = request.options if name == request.strategy else {}
        try:
            return planner.choose(request.problem, self.target, name, options, self.gpu)
        except planner.CannotServe as e:
            raise SpecError(self._refusals(e), self.spec.path, self.spec.text) from None

    @cached_property
    def plan(self) -> Plan:
        plan = self.choice.strategy.plan(self.request.problem, self.target, self.choice.options)
        return replace(plan, reason=self.choice.reason)

    @cached_property
    def source(self) -> str:
        """The CUDA source."""
        return render(self.plan)

    def build(self, cache: Cache | None = None) -> Artifact:
        """The compiled kernel.  Raises CompileError."""
        from convgen.runtime import artifacts

        return artifacts.build(self.source, self.plan, cache=cache)

    def kernel(self) -> Kernel:
        """The callable.  Raises CompileError."""
        return _kernel(self.spec, self.build())

    def explain(self) -> Explanation:
        """Formulas, roofline and every strategy; the plan too, where the strategy that was asked for serves."""
        from convgen.explain import explain
        from convgen.kernels import strategies

        try:
            plan = self.plan
        except SpecError:
            plan = None
        return explain(self.request, plan, strategies.load_all(), self.target)

    def _refusals(self, error: CannotServe) -> list[Diagnostic]:
        """Obstacles as diagnostics that point at the option, the strategy or the conv that is to blame.

        What several strategies say is said once; the last that no option is to blame for tells who serves.
        """
        spans = self.request.spans
        whole = spans.get("strategy") or spans.get("conv")
        names: dict[Obstacle, list[str]] = {}
        for name, obstacles in error.obstacles.items():
            for o in obstacles:
                names.setdefault(o, []).append(name)
        general = [o for o in names if not (o.hint or o.option)]
        hints = {general[-1]: self._who_serves(error)} if general else {}
        return [
            Diagnostic(
                "E401",
                f"{listing(by, 'and').replace('`', '')} cannot serve {self.name}: {o.message}",
                spans.get(f"strategy.{o.option}", whole),
                hints.get(o, o.hint) or None,
            )
            for o, by in names.items()
        ]

    def _who_serves(self, error: CannotServe) -> str:
        from convgen import planner
        from convgen.kernels import strategies

        if error.obstacles.keys() >= set(strategies.MODULES):
            return ""
        names = planner.serving(self.request.problem, self.target)
        verb = "serves" if len(names) == 1 else "serve"
        return f"{listing(names, 'and')} {verb} it" if names else "no strategy serves it"


def load(spec: Spec) -> list[Compilation]:
    """Parse and check.  Raises SpecError, with every diagnostic, and UsageError."""
    from convgen import frontend
    from convgen.kernels import strategies

    options = {name: s.options for name, s in strategies.load_all().items()}
    requests = frontend.load(spec.text, spec.path, spec.defines, strategies=options, targets=TARGETS)
    found = [Compilation(spec, request) for request in requests]
    names = dict.fromkeys(name for c in found for name in (c.request.conv, c.name))
    for name in spec.only:
        if name not in names:
            raise UsageError(f"{spec.path}: {unknown('convolution', name, names)}")
    return [c for c in found if not spec.only or not {c.name, c.request.conv}.isdisjoint(spec.only)]


def choose_all(spec: Spec) -> list[Compilation]:
    """The compilations of a spec, each with its choice made.  Raises SpecError with what stands against all of them."""
    found = load(spec)
    refused: list[Diagnostic] = []
    for compilation in found:
        try:
            _ = compilation.choice
        except SpecError as e:
            refused += e.diagnostics
    if refused:
        raise SpecError(refused, spec.path, spec.text)
    return found


def render(plan: Plan) -> str:
    """The CUDA source of a plan."""
    from convgen.kernels import strategies

    return strategies.load(plan.strategy).render(plan)


def compile_all(spec: Spec, progress: Callable[[str], None] | None = None) -> dict[str, Kernel]:
    """Every kernel of a spec by name.  Needs no GPU.  `progress` hears the name of each kernel that takes
    work, before the work.  Raises SpecError, CompileError, UsageError."""
    from convgen.cache import Cache

    cache = Cache()
    key = _request_key(spec)
    found = _recall(cache, key)
    if found is None:
        found = []
        for compilation in choose_all(spec):
            if progress:
                progress(compilation.name)
            found.append(compilation.build(cache))
        cache.put(key, {_INDEX: json.dumps([artifact.key for artifact in found]).encode()})
    return {artifact.manifest.name: _kernel(spec, artifact) for artifact in found}


#: The file of a request's cache entry: its artifacts' keys.
_INDEX = "artifacts.json"


def _recall(cache: Cache, key: str) -> list[Artifact] | None:
    """What a request gave the last time; None where the cache does not have all of it."""
    from convgen.runtime import artifacts

    entry = cache.get(key)
    if entry is None:
        return None
    found = [artifacts.load(artifact, cache) for artifact in json.loads(entry[_INDEX])]
    whole = [artifact for artifact in found if artifact is not None]
    return whole if len(whole) == len(found) else None


def known_target(name: str) -> Target:
    """Raises UsageError."""
    if name not in TARGETS:
        raise UsageError(unknown("target", name, TARGETS))
    return TARGETS[name]


def known_strategy(name: str) -> str:
    """A strategy's name, or auto.  Raises UsageError."""
    from convgen.kernels import strategies

    if name not in (known := ("auto", *strategies.MODULES)):
        raise UsageError(unknown("strategy", name, known))
    return name


def target_at_hand() -> Target:
    """The target of this machine's GPU, else the default."""
    from convgen.runtime.launch import gpu_at_hand

    found = gpu_at_hand()
    return (target_for(found.capability) if found else None) or TARGETS[DEFAULT_TARGET]


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """What is said of a name that is none of the known ones."""
    known = list(known)
    hint = did_you_mean(str(name), known) or f"known are {', '.join(known)}"
    return f"unknown {kind} {name!r}\nhint: {hint}"


def _specs_in(folder: Path) -> str:
    found = sorted(p.name for p in folder.glob("*.conv"))
    return f", such as {folder / found[0]}" if found else ""


def _nearby(path: Path) -> str:
    """A hint where there is a spec of that name among those that ship, or of a similar name in the folder."""
    hint: Path | None = None
    with suppress(OSError):
        if close := closest(path.stem, [p.stem for p in path.parent.glob("*.conv")]):
            hint = path.with_name(f"{close}.conv")
    with suppress(FileNotFoundError):
        shipped = [p for p in sorted(directory("specs").rglob("*.conv")) if p.stem == path.stem]
        hint = max(shipped, key=lambda p: (p.parent.name == path.parent.name, -len(p.parts)), default=hint)
    return f"\nhint: did you mean `{hint}`?" if hint else ""


def _request_key(spec: Spec) -> str:
    """Of everything that decides what a spec is compiled to, the GPU and what was tuned included."""
    from convgen.planner import database
    from convgen.runtime import artifacts
    from convgen.runtime.launch import gpu_at_hand

    return artifacts.request_key(
        text=spec.text,
        defines=dict(spec.defines),
        target=spec.target or "",
        at_hand=gpu_at_hand(),
        strategy=spec.strategy or "",
        only=spec.only,
        tuned=database.stamp(),
    )


def _kernel(spec: Spec, artifact: Artifact) -> Kernel:
    """A kernel that, though it may have come from the cache, can make its plan and explanation anew."""
    from convgen.runtime.kernel import Kernel

    def again() -> Compilation:
        return next(c for c in load(spec) if c.name == artifact.manifest.name)

    return Kernel(artifact, replan=lambda: again().plan, explain=lambda: str(again().explain()))
