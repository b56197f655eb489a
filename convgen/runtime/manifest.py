"""The manifest: everything that running a compiled kernel takes, as plain data.

It is written beside the cubin as JSON and read back without parsing the spec, so that a kernel from the
cache runs without sympy, lark or jinja2.  JSON and records correspond field by field; the record types
themselves (`ir.plan`, `ir.tensor`) are the schema.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import UnionType
from typing import Any

from convgen.diagnostics import ConvgenError
from convgen.ir import size
from convgen.ir.dynamic import derived
from convgen.ir.estimates import Estimates, SizeClass
from convgen.ir.plan import Fill, Gemm, Launch, Limit, Plan, Step, Workspace, most_images
from convgen.ir.size import Size
from convgen.ir.tensor import Tensor
from convgen.runtime.nvrtc import Resources

#: Changes whenever a field changes its name or its meaning.
SCHEMA = 5
_STEPS: dict[str, type] = {"launch": Launch, "gemm": Gemm, "fill": Fill}
_STEP_NAMES = {kind: name for name, kind in _STEPS.items()}


class ManifestError(ConvgenError):
    """A manifest's text is not one, or is of another version of convgen."""


@dataclass(frozen=True)
class Dynamic:
    """The sizes that a call decides: `dims`, as its arrays have them, and those of the output that are `derived`.
    `limits` are what these must not exceed.  `estimates` are the cost model's, of images as large as the spec's, where
    `dims` has n.  Any number of the manifest may be a `Size`, which follows from these."""

    dims: tuple[str, ...]
    derived: tuple[tuple[str, Size], ...]
    limits: tuple[Limit, ...]
    estimates: Estimates = ()

    @classmethod
    def of(cls, plan: Plan) -> Dynamic | None:
        """None where all sizes are fixed."""
        problem = plan.problem
        if not problem.dynamic:
            return None
        return cls(problem.dynamic, tuple(derived(problem).items()), plan.limits, plan.estimates)


@dataclass(frozen=True)
class Manifest:
    """What was compiled, why so, and how to run it.

    `reads` are the tensors that a caller passes, in order, then `operands`; what comes back is `result`, or a tuple of
    it and the `further` results of the epilogue.  `in_place` are names of operands that may be a result's own array,
    each with the result's.
    `steps` run in order on one stream.  `macs` counts multiply-adds, `min_bytes` what memory moves at least.
    `spec` is the canonical text, `digest` its digest; `resources` are ptxas's figures by entry point.
    """

    convgen: str
    name: str
    op: str
    strategy: str
    config: str
    reason: str
    notes: tuple[str, ...]
    arithmetic: str
    target: str
    digest: str
    spec: str
    macs: int
    min_bytes: int
    reads: tuple[Tensor, ...]
    operands: tuple[Tensor, ...]
    result: Tensor
    steps: tuple[Step, ...]
    workspaces: tuple[Workspace, ...]
    resources: Mapping[str, Resources]
    nvrtc: str
    flags: tuple[str, ...]
    further: tuple[Tensor, ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()
    dynamic: Dynamic | None = None

    @classmethod
    def of(cls, plan: Plan, resources: Mapping[str, Resources], nvrtc: str, flags: tuple[str, ...]) -> Manifest:
        """The manifest of a plan whose source NVRTC has compiled."""
        from convgen import __version__

        problem = plan.problem
        return cls(
            convgen=__version__,
            name=problem.name,
            op=str(problem.op),
            strategy=plan.strategy,
            config=plan.configuration,
            reason=plan.reason,
            notes=plan.notes,
            arithmetic=plan.arithmetic,
            target=plan.target.name,
            digest=problem.digest,
            spec=str(problem),
            macs=problem.macs,
            min_bytes=problem.min_bytes,
            reads=problem.reads,
            operands=problem.operands,
            result=problem.result,
            further=problem.further,
            in_place=problem.in_place,
            dynamic=Dynamic.of(plan),
            steps=plan.steps,
            workspaces=plan.workspaces,
            resources=dict(resources),
            nvrtc=nvrtc,
            flags=flags,
        )

    @cached_property
    def arguments(self) -> tuple[Tensor, ...]:
        """All that a call takes, in order."""
        return (*self.reads, *self.operands)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that a call takes and gives."""
        return (*self.arguments, *self.results)

    @property
    def results(self) -> tuple[Tensor, ...]:
        """All that a call gives, in order."""
        return (self.result, *self.further)

    @cached_property
    def written(self) -> dict[str, int]:
        """The sizes of dynamic dims that the plan was made for."""
        tensors = reversed(self.tensors)  # of operands that broadcast, the extent is 1
        extents = {dim: int(extent) for t in tensors for dim, extent in zip(t.dims, t.extents, strict=True)}
        return {dim: extents[dim] for dim in self.dynamic.dims} if self.dynamic else {}

    @property
    def size_class(self) -> SizeClass:
        """The kernel's size class, if it has dynamic sizes and is one of several for different numbers of images."""
        assert self.dynamic
        sizes = self.written | {dim: int(extent) for dim, extent in self.dynamic.derived}
        return SizeClass(self.dynamic.estimates, most_images(self.dynamic.limits, sizes))

    def at(self, sizes: Mapping[str, int]) -> Manifest:
        """The manifest of the kernel for these sizes of its dynamic dims, all of which are given."""
        fields = {name: _at(getattr(self, name), sizes, self._sized) for name, _ in _hints(Manifest)}
        return Manifest(**fields | {"dynamic": None})

    @cached_property
    def _sized(self) -> frozenset[int]:
        """The identities of records that have a `Size`: a call of new sizes visits no others."""
        found: set[int] = set()
        _sized(self, found)
        return frozenset(found)

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **_plain(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        """Raises ManifestError."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise ManifestError(f"not a manifest: {error}") from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise ManifestError(f"not a manifest of schema {SCHEMA}: compile the spec again with this convgen")
        try:
            return _record(cls, data)
        except (KeyError, TypeError, ValueError) as error:
            raise ManifestError(f"a manifest with a missing or wrong field: {error!r}") from None


def _plain(value: Any) -> Any:
    """Records as dicts, tuples as lists, sizes that a call decides with their formula.  A step says which kind it is; a
    tensor also shows its shape and strides, which readers of the JSON want and `_record` derives again."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Size):
        return {"written": int(value), "formula": size.short(value.formula)}
    if not dataclasses.is_dataclass(value):
        return value
    plain: dict[str, Any] = {"step": _STEP_NAMES[type(value)]} if type(value) in _STEP_NAMES else {}
    plain |= {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Tensor):
        plain |= {"shape": _plain(value.shape), "strides": _plain(value.strides)}
    return plain


def _record(kind: Any, data: Any) -> Any:
    """The inverse of `_plain`, led by the type that is wanted."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return kind(**{name: _record(hint, data[name]) for name, hint in _hints(kind)})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        kinds = arguments[:1] * len(data) if arguments[-1] is Ellipsis else arguments
        return tuple(_record(hint, item) for hint, item in zip(kinds, data, strict=True))
    if origin is UnionType:  # X | None, or a step
        if data is None:
            return None
        chosen = _STEPS[data["step"]] if Launch in arguments else arguments[0]
        return _record(chosen, data)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _record(arguments[1], item) for key, item in data.items()}
    if kind is float and isinstance(data, int):
        return float(data)
    if kind in (int, Size) and isinstance(data, dict):
        return Size(_record(int, data["written"]), _record(str, data["formula"]))
    if not isinstance(data, kind):
        raise TypeError(f"expected {kind.__name__}, got {data!r}")
    return data


def _parts(value: Any) -> tuple[Any, ...]:
    """The parts of a record or a tuple."""
    if isinstance(value, tuple):
        return value
    kind: type = type(value)
    return tuple(getattr(value, name) for name, _ in _hints(kind)) if dataclasses.is_dataclass(kind) else ()


def _sized(value: Any, found: set[int]) -> bool:
    """Whether a record has a `Size`; the identities of all that have go to `found`."""
    if has := isinstance(value, Size) or any([_sized(part, found) for part in _parts(value)]):
        found.add(id(value))
    return has


def _at(value: Any, sizes: Mapping[str, int], sized: Collection[int]) -> Any:
    """A record of those that are `sized`, with the numbers that its `Size`s are for these sizes."""
    if id(value) not in sized:
        return value
    if isinstance(value, Size):
        return size.evaluate(value.formula, sizes)
    if isinstance(value, tuple):
        return tuple([_at(item, sizes, sized) for item in value])
    kind: type = type(value)
    return kind(**{name: _at(getattr(value, name), sizes, sized) for name, _ in _hints(kind)})


@cache
def _hints(kind: type) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in dataclasses.fields(kind))
