"""Whole specs, checked or compiled: what was asked before is answered from the cache, without any pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from convgen import driver
from convgen.diagnostics import SpecError, format_json, parse_json
from convgen.driver import Compilation
from convgen.spec import Spec

if TYPE_CHECKING:
    from convgen.cache import Cache
    from convgen.runtime.artifacts import Artifact
    from convgen.runtime.kernel import Kernel

#: The file of a check's cache entry: how many convolutions there are, or every diagnostic.
_VERDICT = "verdict.json"
#: The file of a compilation's cache entry: the keys of each kernel's artifacts.
_INDEX = "artifacts.json"


def check_all(spec: Spec, progress: Callable[[str], None] | None = None) -> int:
    """How many convolutions a spec has, all of which some strategy serves.  What was checked before is answered from
    the cache; `progress` hears each other's name.  Raises SpecError with every diagnostic, UsageError."""
    from convgen.cache import Cache

    cache = Cache()
    key = request_key(spec, asked="check")
    if entry := cache.get(key):
        verdict = json.loads(entry[_VERDICT])
    else:
        found: list[Compilation] = []
        try:
            found = driver.check_served(driver.load(spec), progress)
            verdict = len(found)
        except SpecError as e:
            verdict = json.loads(format_json(e.diagnostics, ""))
        if not any(c.request.outdated for c in found):  # which the cache would not warn of
            cache.put(key, {_VERDICT: json.dumps(verdict).encode()})
    if isinstance(verdict, int):
        return verdict
    raise SpecError(parse_json(json.dumps(verdict)), spec.path, spec.text)


def compile_all(spec: Spec, progress: Callable[[str], None] | None = None) -> dict[str, Kernel]:
    """Every kernel of a spec by name.  Needs no GPU.  `progress` hears the name of each kernel that takes
    work, before the work.  Raises SpecError, CompileError, UsageError."""
    from convgen.cache import Cache
    from convgen.planner import database

    cache = Cache()
    key = request_key(spec, asked="compile", tune=spec.tune or "", images=spec.images, tuned=database.stamp())
    found = _recall(cache, key)
    if found is None:
        found = []
        compilations = driver.choose_all(spec, progress if spec.tune or spec.images else None)
        for compilation in compilations:
            if progress:
                progress(compilation.name)
            found.append([own.build(cache) for own in compilation.classes])
        asked = [own for c in compilations for own in c.classes]
        if not any(c.request.outdated or c.unmeasured for c in asked):  # which the cache would not warn of
            index = [[artifact.key for artifact in artifacts] for artifacts in found]
            cache.put(key, {_INDEX: json.dumps(index).encode()})
    return {artifacts[0].manifest.name: _kernel(spec, artifacts) for artifacts in found}


def _recall(cache: Cache, key: str) -> list[list[Artifact]] | None:
    """The earlier answer to a request; None if the cache does not have all of it."""
    from convgen.runtime import artifacts

    entry = cache.get(key)
    if entry is None:
        return None
    found = [[artifacts.load(artifact, cache) for artifact in keys] for keys in json.loads(entry[_INDEX])]
    whole = [[artifact for artifact in made if artifact is not None] for made in found]
    return whole if list(map(len, whole)) == list(map(len, found)) else None


def request_key(spec: Spec, **more: object) -> str:
    """A key of everything that decides the result of a spec, including the GPU.  Raises SpecError if a value for a
    `let` is not a number, and so has no place in a key."""
    from convgen.frontend.sizes import MAX_VALUE
    from convgen.runtime import artifacts
    from convgen.runtime.launch import gpu_at_hand

    if any(type(value) is not int or abs(value) > MAX_VALUE for value in spec.defines.values()):
        driver.load(spec)  # refuses it
    return artifacts.request_key(
        text=spec.text,
        defines=dict(spec.defines),
        target=spec.target or "",
        at_hand=gpu_at_hand(),
        strategy=spec.strategy or "",
        only=spec.only,
        **more,
    )


def _kernel(spec: Spec, artifacts: Sequence[Artifact]) -> Kernel:
    """A kernel of one artifact for each class that, though it may have come from the cache, can make its plan and
    explanation anew."""
    from convgen.runtime.kernel import Kernel
    from convgen.runtime.saved import one

    measured = replace(spec, tune=None)

    def of(artifact: Artifact) -> Kernel:
        def again() -> Compilation:
            found = next(c for c in driver.load(measured) if c.name == artifact.manifest.name)
            return found.planned_for(artifact.manifest.written["n"]) if spec.images else found

        return Kernel(artifact, replan=lambda: again().plan, explain=lambda: str(again().explain()))

    return one([of(artifact) for artifact in artifacts])
