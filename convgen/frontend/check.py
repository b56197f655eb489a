"""Syntax tree to requests: gives a spec its meaning and finds every error in it.

Each aspect has its module (names, sizes, geometry, epilogue, strategy); this one knows the conv block:
which settings there are, which tensors and operators go together, and how a problem is put together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import TypeVar

from convgen import habits
from convgen.diagnostics import Report, Span, listing
from convgen.frontend import ast
from convgen.frontend.dims import SETTING_OF, rename_dims
from convgen.frontend.dynamic import check_dynamic
from convgen.frontend.epilogue import ACC, Checked, check_epilogue, check_tensors
from convgen.frontend.geometry import Geometry
from convgen.frontend.lowered import check_lowered
from convgen.frontend.names import ARGUMENTS, Names
from convgen.frontend.operators import LOWERING, OPERATORS, Operator
from convgen.frontend.padding import check_fill
from convgen.frontend.prologue import check_prologue
from convgen.frontend.request import Request
from convgen.frontend.size_hints import LAYOUTS
from convgen.frontend.sizes import Sizes
from convgen.frontend.slices import pitch
from convgen.frontend.solver import Solver
from convgen.frontend.strategy import OptionRow, Renames, check_strategy, check_target
from convgen.frontend.transposed import TransposedGeometry, TransposedSolver, exchanged
from convgen.frontend.types import ACCUMULATOR_OF, TYPE_ERRORS, check_types, check_unmixed
from convgen.ir.dtypes import DTYPES, TENSOR_DTYPES
from convgen.ir.epilogue import FUNCTIONS, NOT_RESERVED, Epilogue, Prologue
from convgen.ir.problem import OPS, ConvProblem, Op, Padding
from convgen.ir.tensor import Tensor

#: Bytes of a tensor, so that offsets fit 64 bits.
MAX_BYTES = 1 << 63
P = TypeVar("P", bound=ast.PointwiseSetting)
_RESERVED = {ACC: "the accumulator in epilogues"} | dict.fromkeys(
    (name for name in FUNCTIONS if name not in NOT_RESERVED), "a function of epilogues"
)


def check(
    spec: ast.Spec,
    defines: Mapping[str, int],
    strategies: Mapping[str, Sequence[OptionRow]] | None,
    targets: Collection[str] | None,
    report: Report,
    renamed: Renames | None = None,
) -> list[Request]:
    """The requests of the blocks; where there are errors, they are in the report, and some requests are missing."""
    sizes = Sizes(spec, defines, report)
    convs, results = Names(report), Names(report)
    requests = []
    for conv in spec.convs:
        block = _Block(conv, sizes, report)
        if "conv" not in conv.lost and convs.declare(conv.name):
            for name in block.names:
                results.declare(conv.name, name)
        requests += block.requests(strategies, targets, renamed)
    return requests


class _Block:
    """One conv block."""

    def __init__(self, conv: ast.Conv, sizes: Sizes, report: Report) -> None:
        self._conv, self._sizes, self._report = conv, sizes, report
        self._names = Names(report, _RESERVED)
        self._once()
        stated = {role: conv.first(ast.TensorSetting, keyword) for role, keyword in SETTING_OF.items()}
        self._tensors = {role: rename_dims(role, s.tensor, report) for role, s in stated.items() if s}
        self._lowered = conv.first(ast.LoweredSetting)
        #: Empty where the block's operators have an error.
        self.ops = () if "op" in conv.lost else self._operators()
        if not self.ops:
            self._conv = replace(conv, lost=conv.lost | {"op"})
        lowered = self._lowered is not None or "lowered" in conv.lost
        self._lowers = any(op.op in LOWERING for op in self.ops) if self.ops else lowered

    @property
    def names(self) -> list[str]:
        """Name of each operator's problem."""
        name = self._conv.name.text
        return [name] if len(self.ops) == 1 else [f"{name}_{op}" for op in self.ops]

    def requests(
        self,
        strategies: Mapping[str, Sequence[OptionRow]] | None,
        targets: Collection[str] | None,
        renamed: Renames | None,
    ) -> list[Request]:
        conv, report = self._conv, self._report
        before = len(report)
        self._complete()
        self._declare()
        solver = self._solver()
        geometry = solver.solve()
        self._types(solver.padding)
        pitches = {
            role: pitch(tensor, geometry.extents(role) if geometry else {}, self._sizes, report)
            for role, tensor in self._tensors.items()
        }
        lowered = check_lowered(self._lowered, solver.spatial, solver.known, report) if self._lowered else None
        prologue = self._prologue(geometry)
        epilogue = self._epilogue()
        operands, results = check_tensors(epilogue, self._tensors, geometry, self._sizes, report)
        if not report.has(*TYPE_ERRORS, since=before):
            check_unmixed(self._all_tensors, report)
        strategy, options = check_strategy(conv.first(ast.StrategySetting), strategies, self._sizes, report, renamed)
        target = check_target(conv.first(ast.NameSetting, "target"), targets, report)
        dynamic = check_dynamic(conv.first(ast.DynamicSetting), self.ops, self._tensors, solver, epilogue, report)
        if geometry is None:
            return []
        tensors = [self._tensor(role, geometry, pitches.get(role)) for role in SETTING_OF]
        read = prologue.operands if prologue else ()
        self._small_enough(chain(tensors, [lowered] if lowered else [], read, operands, results))
        if len(report):  # anywhere in the file: its result is not used
            return []
        if isinstance(geometry, TransposedGeometry):
            geometry = geometry.as_dgrad
            tensors = list(map(exchanged, tensors))
            operands, results = (tuple(map(exchanged, given)) for given in (operands, results))
        by_role = {t.role: t for t in tensors}
        requests = []
        for name, op in zip(self.names, self.ops, strict=True):
            typed = OPS[op.op].reads[0].replace("lowered", "x")  # which has the same type
            fill = geometry.padding if geometry.padding.repeats or op.reads_padding else Padding.ZERO
            problem = ConvProblem(
                name=name,
                op=op.op,
                **{**vars(geometry), "padding": fill},
                x=by_role["x"],
                w=by_role["w"],
                y=by_role["y"],
                lowered=lowered,
                accumulate=ACCUMULATOR_OF[by_role[typed].dtype],
                epilogue=Epilogue(operands, epilogue.body, results) if epilogue and epilogue.op is op else None,
                prologue=prologue,
                dynamic=dynamic,
            )
            requests.append(
                Request(conv.name.text, problem, strategy, options, target, self._spans(), bool(report.warnings))
            )
        return requests

    # --- settings ---

    def _once(self) -> None:
        first: dict[str, ast.Setting] = {}
        for setting in self._conv.settings:
            keyword = setting.keyword
            if keyword.text in first:
                hint = f"the first is on line {first[keyword.text].keyword.span.line}"
                self._report.error("E202", f"`{keyword.text}` is given twice", keyword.span, hint)
            first.setdefault(keyword.text, setting)

    def _operators(self) -> tuple[Operator, ...]:
        setting = self._conv.first(ast.OpSetting)
        if setting is None:
            return (OPERATORS[Op.FPROP],)
        found: list[Operator] = []
        clear = True
        for name in setting.ops:
            if name.text not in OPERATORS:
                hint = habits.OP_NOTES.get(habits.plain(name.text))
                hint = hint or habits.did_you_mean(name.text, OPERATORS, habits.OPS)
                hint = hint or f"the operators are {listing(tuple(OPERATORS), 'and')}"
                self._report.error("E213", f"no operator is named `{name.text}`", name.span, hint)
                meant = habits.meant(name.text, OPERATORS, habits.OPS)
                found += [OPERATORS[meant]] if meant else []
                clear &= meant is not None
            elif OPERATORS[name.text] in found:
                self._report.error("E213", f"`{name.text}` is listed twice", name.span)
            else:
                found.append(OPERATORS[name.text])
        alone = next((op for op in found if op.alone), None)
        if alone and len(found) > 1:
            hint = "write a separate conv block for each"
            self._report.error("E213", f"`{alone}` cannot be combined with other operators", setting.span, hint)
            clear = False
        return tuple(dict.fromkeys(found)) if clear else ()

    def _example(self, keyword: str) -> str:
        """A tensor's setting that goes with the others' type, axes and channels."""
        tensors = [s.tensor for s in self._conv.settings if isinstance(s, ast.TensorSetting)]
        dtype = next((t.dtype.text for t in tensors if t.dtype.text in TENSOR_DTYPES), "f16")
        if keyword == "lowered":
            return f"lowered m: {dtype}[rows, cols]"
        stated = {d.name.text: d.extent.text for t in tensors for d in t.dims if isinstance(d.extent, ast.Number)}
        extents = dict.fromkeys("nd", "8") | dict.fromkeys("hw", "14") | dict.fromkeys("ck", "64") | stated
        extents |= {dim: stated.get(dim, "3") for dim in "trs"} | dict.fromkeys("opq", "")
        dims = LAYOUTS[keyword].get(len(tensors[0].dims) if tensors else 4, LAYOUTS[keyword][4])
        known = "nk" if keyword == "output" else ""  # the others' have them
        said = [dim if dim in known or not extents[dim] else f"{dim}={extents[dim]}" for dim in dims]
        (role,) = (role for role, setting in SETTING_OF.items() if setting == keyword)
        return f"{keyword} {role}: {dtype}[{', '.join(said)}]"

    def _complete(self) -> None:
        """Settings that must be there, or must not."""
        if not self.ops:
            return
        needed = ("input", "filter", "lowered") if self._lowers else ("input", "filter", "output")
        present = {setting.keyword.text for setting in self._conv.settings} | self._conv.lost
        for keyword in needed:
            if keyword not in present:
                message = f"`{self._conv.name.text}` has no `{keyword}`"
                self._report.error("E201", message, self._conv.name.span, f"write `{self._example(keyword)}`")
        if self._lowered and not self._lowers:
            message = f"{listing(self.ops, 'and')} {'have' if len(self.ops) > 1 else 'has'} no lowered matrix"
            self._report.error("E214", message, self._lowered.span, "remove it, or write `op im2col` or `op col2im`")

    def _declare(self) -> None:
        """The names of the tensors, in the order of the text."""
        named = {role: t.name for role, t in self._tensors.items()}
        if self._lowered:
            named["lowered"] = self._lowered.name
        passed = {role for op in self.ops for role in op.reads}
        for role, name in sorted(named.items(), key=lambda item: (item[1].span.line, item[1].span.column)):
            self._names.declare(name, taken=ARGUMENTS if role in passed else None)

    def _solver(self) -> Solver:
        kind = TransposedSolver if any(op.exchanged for op in self.ops) else Solver
        lowers = self._lowers or self._lowered is not None
        return kind(self._conv, self._tensors, lowers, self._sizes, self._report)

    # --- tensors ---

    def _types(self, fill: Padding) -> None:
        typed = {role: (t.name, t.dtype) for role, t in self._tensors.items()}
        if self._lowered:
            typed["lowered"] = (self._lowered.name, self._lowered.dtype)
        check_types(self.ops, typed, self._conv.first(ast.NameSetting, "accumulate"), self._report)
        padded = self._conv.first(ast.AxesSetting, "pad")
        if padded and "x" in self._tensors and any(op.reads_padding for op in self.ops):
            check_fill(fill, self._tensors["x"].dtype.text, padded.span, self._report)

    @property
    def _all_tensors(self) -> list[ast.Tensor]:
        """All tensors: of the operators, the prologue and the epilogue."""
        prologue, epilogue = self._conv.first(ast.PrologueSetting), self._conv.first(ast.EpilogueSetting)
        read = prologue.operands if prologue else ()
        return [*self._tensors.values(), *read, *((*epilogue.operands, *epilogue.results) if epilogue else ())]

    def _tensor(self, role: str, geometry: Geometry, pitch: int | None) -> Tensor:
        extents = geometry.extents(role)
        if role in self._tensors:
            declared = self._tensors[role]
            name, dtype, dims = declared.name.text, declared.dtype.text, tuple(d.name.text for d in declared.dims)
        else:  # im2col and col2im need no output; it is there for the geometry
            free = chain(["y"], (f"y{i}" for i in count(1)))
            name, dtype = next(n for n in free if n not in self._names), self._tensors["x"].dtype.text
            dims = ("n", *geometry.spatial.output, "k")
        return Tensor(name, role, dtype, dims, tuple(extents[d] for d in dims), pitch=pitch)

    def _small_enough(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            element = DTYPES[tensor.dtype].bytes if tensor.dtype in DTYPES else 1
            if (size := tensor.whole.size * element) > MAX_BYTES:
                message = f"`{tensor.name}` has {size} bytes; at most {MAX_BYTES} can be addressed"
                self._report.error("E212", message, self._names.span(tensor.name) or self._conv.name.span)

    def _pointwise(self, kind: type[P]) -> P | None:
        """The prologue or the epilogue.  Where the operators or a tensor are lost, nothing is known of the names that
        are lost with these, nor which tensors it may use."""
        setting = self._conv.first(kind)
        if setting is None or not self._conv.lost & {"op", *SETTING_OF.values()}:
            return setting
        return replace(setting, lost=(setting.lost or frozenset()) | self._conv.names)

    def _prologue(self, geometry: Geometry | None) -> Prologue | None:
        setting = self._pointwise(ast.PrologueSetting)
        if setting is None:
            return None
        return check_prologue(setting, self.ops, self._tensors, geometry, self._names, self._sizes, self._report)

    def _epilogue(self) -> Checked | None:
        setting = self._pointwise(ast.EpilogueSetting)
        if setting is None:
            return None
        if self.ops and self._lowers:
            message = f"{listing(self.ops)} takes no epilogue"
            self._report.error("E305", message, setting.keyword.span, "it only moves elements")
            return None
        return check_epilogue(setting, self.ops, self._tensors, self._names, self._sizes, self._report)

    # --- places ---

    def _spans(self) -> dict[str, Span]:
        spans = {"conv": self._conv.name.span}
        for setting in self._conv.settings:
            spans[setting.keyword.text] = setting.span
            if isinstance(setting, ast.TensorSetting):
                spans[setting.keyword.text] = setting.tensor.span
            elif isinstance(setting, ast.StrategySetting):
                spans["strategy"] = setting.name.span
                spans |= {f"strategy.{o.name.text}": o.span for o in setting.options}
            elif setting.keyword.text == "target" and isinstance(setting, ast.NameSetting):
                spans["target"] = setting.name.span
        return spans
