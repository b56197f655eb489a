"""The passes, in order: from a spec's text to kernels.

    load      text -> requests (parse, check)           frontend
    choose    request -> strategy and options           planner
    plan      problem -> plan                           strategy
    render    plan -> CUDA source                       strategy, templates
    build     source -> cubin and ptxas's figures       NVRTC, cached by content
    manifest  all that a launch needs, as plain data    runtime

A request that was answered before is answered from the cache without any of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from convgen.diagnostics import ConvgenError, Diagnostic, SpecError
from convgen.targets import DEFAULT_TARGET, TARGETS, Target, target_for

if TYPE_CHECKING:
    from convgen.frontend import Request
    from convgen.ir.plan import Plan
    from convgen.runtime.kernel import Kernel


class UnreadableSpec(ConvgenError):
    """The spec's file cannot be read."""

    exit_code = 2


def read(source: str | os.PathLike[str]) -> tuple[str, str]:
    """Text and path of a spec given as a path, or as text (anything with a brace or a line break)."""
    if isinstance(source, str) and ("{" in source or "\n" in source or not source.strip()):
        return source, "<text>"
    path = Path(source)
    try:
        return path.read_bytes().decode("utf-8"), str(path)
    except FileNotFoundError:
        raise UnreadableSpec(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UnreadableSpec(f"{path}: is a directory; name a .conv file") from None
    except UnicodeDecodeError as e:
        raise UnreadableSpec(f"{path}: not UTF-8 text (byte {e.start})") from None
    except OSError as e:
        raise UnreadableSpec(f"{path}: cannot be read: {e.strerror or e}") from None


def load(text: str, path: str, defines: Mapping[str, int] | None = None) -> list[Request]:
    """Parse and check; raises SpecError with every diagnostic."""
    from convgen import frontend, strategies

    options = {name: s.options for name, s in strategies.load_all().items()}
    return frontend.load(text, path, defines, strategies=options, targets=TARGETS)


def resolve_target(name: str | None) -> Target:
    """A target by name; None is the GPU at hand, else the default.  Raises ConvgenError."""
    if name is None:
        from convgen.runtime.launch import device_capability

        capability = device_capability()
        found = target_for(capability) if capability else None
        return found or TARGETS[DEFAULT_TARGET]
    if name not in TARGETS:
        raise ConvgenError(f"unknown target {name!r}; known are {', '.join(TARGETS)}")
    return TARGETS[name]


def make_plan(request: Request, text: str, path: str, target: str | None = None, strategy: str | None = None) -> Plan:
    """Choose and plan.  `target` and `strategy` override what the spec says.  Raises SpecError."""
    from convgen import planner, strategies

    name = strategy or request.strategy
    if name != "auto" and name not in strategies.MODULES:
        raise ConvgenError(f"unknown strategy {name!r}; known are auto, {', '.join(strategies.MODULES)}")
    options = request.options if name == request.strategy else {}
    where = resolve_target(target or request.target)
    try:
        choice = planner.choose(request.problem, where, name, options)
    except planner.CannotServe as e:
        raise SpecError(_refusals(e, request), path=path, text=text) from None
    return replace(choice.strategy.plan(request.problem, where, choice.options), reason=choice.reason)


def _refusals(error, request: Request) -> list[Diagnostic]:
    """Obstacles as diagnostics that point at the option, the strategy or the conv that is to blame."""
    found = []
    for name, obstacles in error.obstacles.items():
        for o in obstacles:
            span = request.spans.get(f"strategy.{o.option}") if o.option else None
            span = span or request.spans.get("strategy") or request.spans.get("conv")
            found.append(
                Diagnostic("E401", f"{name} cannot serve {request.problem.name}: {o.message}", span, o.hint or None)
            )
    return found


def render(plan: Plan) -> str:
    """The CUDA source of a plan."""
    from convgen import strategies

    return strategies.load(plan.strategy).render(plan)


def compile_all(
    source: str | os.PathLike[str],
    defines: Mapping[str, int] | None = None,
    target: str | None = None,
    strategy: str | None = None,
) -> dict[str, Kernel]:
    """Every kernel of a spec by name.  Needs no GPU.  Raises SpecError, CompileError."""
    from convgen.runtime import artifacts
    from convgen.runtime.cache import Cache
    from convgen.runtime.kernel import Kernel

    text, path = read(source)
    cache = Cache()
    key = _request_key(text, defines, target, strategy)
    replan = partial(_replan, text, path, defines, target, strategy)
    kernels = _from_cache(cache, key, replan)
    if kernels is not None:
        return kernels
    kernels, index = {}, {}
    for request in load(text, path, defines):
        plan = make_plan(request, text, path, target, strategy)
        artifact = artifacts.build(render(plan), plan, cache=cache)
        index[request.problem.name] = artifact.key
        kernels[request.problem.name] = Kernel(artifact, replan=partial(replan, request.problem.name))
    cache.put(key, {"index.json": json.dumps(index).encode()})
    return kernels


def _from_cache(cache, key: str, replan) -> dict[str, Kernel] | None:
    from convgen.runtime import artifacts
    from convgen.runtime.kernel import Kernel

    hit = cache.get(key)
    if hit is None:
        return None
    kernels = {}
    for name, artifact_key in json.loads(hit["index.json"]).items():
        artifact = artifacts.load(artifact_key, cache=cache)
        if artifact is None:
            return None
        kernels[name] = Kernel(artifact, replan=partial(replan, name))
    return kernels


def _request_key(text: str, defines: Mapping[str, int] | None, target: str | None, strategy: str | None) -> str:
    from convgen.runtime.artifacts import schema_digest

    where = resolve_target(target).name if target is None else target
    parts = [schema_digest(), text, sorted((defines or {}).items()), target, where, strategy]
    return "request-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _replan(text, path, defines, target, strategy, name: str) -> Plan:
    """The plan of a kernel that came from the cache."""
    request = next(r for r in load(text, path, defines) if r.problem.name == name)
    return make_plan(request, text, path, target, strategy)
