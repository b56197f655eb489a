"""Checks an epilogue: which operator it serves, its tensors, and its expressions' names and functions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from convgen import habits, plurals
from convgen.diagnostics import Report, did_you_mean, listing
from convgen.frontend import ast
from convgen.frontend.dims import ROLE_DIMS
from convgen.frontend.geometry import Geometry
from convgen.frontend.names import ARGUMENTS, Names
from convgen.frontend.operators import OPERATORS, Operator
from convgen.frontend.sizes import Sizes
from convgen.frontend.slices import pitch
from convgen.frontend.types import check_dtype, number_type
from convgen.ir import epilogue as ir
from convgen.ir.dtypes import TENSOR_DTYPES
from convgen.ir.tensor import Tensor

ACC = "acc"
#: What a result cannot be called: the roles of a kernel's tensors; and an operand neither, nor as other arguments are.
ROLES = dict.fromkeys(("x", "w", "y", "lowered"), "a tensor of every kernel")
_TAKEN = ARGUMENTS | ROLES


@dataclass(frozen=True)
class Checked:
    """An epilogue: the operator that it serves, its operands, its further results, its body without the assignments
    that have an error, in which the operator's result comes last, and by name of each further result that is assigned
    there the role of the tensor whose dims it has."""

    op: Operator
    operands: tuple[ast.Tensor, ...]
    results: tuple[ast.Tensor, ...]
    body: tuple[ir.Assignment, ...]
    likes: Mapping[str, str]


def check_epilogue(
    setting: ast.EpilogueSetting,
    ops: Sequence[Operator],
    tensors: Mapping[str, ast.Tensor],
    names: Names,
    sizes: Sizes,
    report: Report,
) -> Checked | None:
    """The checked epilogue, whose errors are in the report; None where these leave open which operator it serves.

    `ops` are the block's operators, none where those have an error; `tensors` its tensors by role, `names`
    the names of the block so far.
    """
    for operand in setting.operands:
        check_dtype(operand.dtype, report)
        names.declare(operand.name, taken=_TAKEN)
    for further in setting.results:
        check_dtype(further.dtype, report)
        names.declare(further.name, taken=ROLES)
    op = _served(setting, ops, tensors, report) if ops and setting.lost is None else None
    if op is None:  # nobody knows what the assignments may read
        setting = replace(setting, lost=setting.lost or frozenset())
    likes = _likes(setting, op, tensors) if op else {}
    sums = _sums(setting.results, op, likes, tensors, report) if op else {}
    unsure = {t.name.text for t in setting.results if op and not (t.sure and tensors[likes[t.name.text]].sure)}
    summed = {name for name in unsure.union(sums) if op and likes[name] != op.writes}
    made = tensors[op.writes].name.text if op else None
    body = Body(setting, tensors, sums, summed, made, names, sizes, report).check()
    if op is None:
        return None
    assigned = {a.name for a in body}  # any other result may be the sum of some tensor
    likes = {name: role for name, role in likes.items() if name in assigned}
    return Checked(op, setting.operands, setting.results, tuple(sorted(body, key=lambda a: a.name == made)), likes)


def check_tensors(
    epilogue: Checked | None, tensors: Mapping[str, ast.Tensor], geometry: Geometry | None, sizes: Sizes,
    report: Report,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:  # fmt: skip
    """The operands and the further results as tensors: their dims are dims of the operator's result, over which
    operands broadcast, or of the tensor that a further result is the sum of."""
    if epilogue is None:
        return (), ()

    def made(t: ast.Tensor, kind: str, role: str) -> Tensor:
        shown = "the result" if role == epilogue.op.writes else ""
        return tensor(t, kind, like_of(tensors[role], role, geometry, shown), sizes, report)

    results = {t.name.text: t for t in epilogue.results}
    return (
        tuple(made(t, "operand", epilogue.op.writes) for t in epilogue.operands),
        tuple(made(results[name], "result", role) for name, role in epilogue.likes.items()),
    )


def _likes(setting: ast.EpilogueSetting, op: Operator, tensors: Mapping[str, ast.Tensor]) -> dict[str, str]:
    """For each further result, by name, the role of the tensor whose dims it has: one that the operator reads if that
    is assigned to it, else the operator's result."""
    reads = {tensors[role].name.text: role for role in op.reads if role in tensors}
    found = {t.name.text: op.writes for t in setting.results}
    for a in setting.body:
        if a.name.text in found and isinstance(a.value, ast.Reference) and a.value.name in reads:
            found[a.name.text] = reads[a.value.name]
    return found


def _sums(
    results: Sequence[ast.Tensor],
    op: Operator,
    likes: Mapping[str, str],
    tensors: Mapping[str, ast.Tensor],
    report: Report,
) -> dict[str, str]:
    """The further results that leave out dims of the tensors whose dims they have, and over which they are summed."""
    found = {}
    for result in results:
        role = likes[result.name.text]
        main, held = tensors[role], {d.name.text for d in result.dims}
        lacking = [d.name.text for d in main.dims if d.name.text not in held]
        foreign = held - {d.name.text for d in main.dims}
        if result.sure and main.sure and lacking and (role != op.writes or not foreign):
            name, over = result.name.text, listing(lacking, "and")
            found[name] = over
            wanted = number_type(tensors.values())
            if result.dtype.text != wanted:
                message = f"`{name}` is a sum over {over}, which cannot be {result.dtype.text}"
                hint = f"write {wanted}, or all dims of `{main.name.text}`" if role == op.writes else f"write {wanted}"
                report.error("E205", message, result.dtype.span, hint)
    return found


@dataclass(frozen=True)
class Like:
    """A tensor whose dims others have: its role, its name, and the extents of its dims, None where they are not known.
    `shown` is what it is; empty where others are sums of it.  `sure`: it has no other dims."""

    role: str
    name: str
    extents: Mapping[str, int | None]
    shown: str
    sure: bool


def like_of(declared: ast.Tensor, role: str, geometry: Geometry | None, shown: str) -> Like:
    """One of the operator's tensors."""
    extents = geometry.extents(role) if geometry else {}
    dims = {d.name.text: extents.get(d.name.text) for d in declared.dims}
    return Like(role, declared.name.text, dims, shown, declared.sure)


def tensor(declared: ast.Tensor, role: str, like: Like, sizes: Sizes, report: Report) -> Tensor:
    """An operand or a further result."""
    name, extents = declared.name.text, like.extents
    article, without = ("an", "broadcast along") if role == "operand" else ("a", "sum over")
    dims: dict[str, int] = {}
    for dim in declared.dims:
        at = dim.name.text
        extent = extents.get(at)
        stated = sizes.evaluate(dim.extent) if dim.extent else None
        if at in ROLE_DIMS.get(like.role, ()) and at not in extents and extents and not any(extents.values()):
            pass  # disagreeing extents are reported; this may be one of them
        elif at not in extents and like.sure:
            have = f"are {listing(tuple(extents), 'and')}" if extents else "are none"
            hint = habits.did_you_mean(at, extents, habits.DIMS[like.role])
            whose = f"{article} {role} has dims of {like.shown}" if like.shown else "a sum has dims of"
            hint = hint or f"{whose} `{like.name}`, which {have}"
            report.error("E203", f"`{name}` cannot have the dim `{at}`", dim.name.span, hint)
        elif at in dims:
            report.error("E204", f"`{name}` has the dim `{at}` twice", dim.name.span)
        elif extent and stated is not None and stated != extent:
            hint = f"leave {at} out to {without} it" if stated == 1 else None
            message = f"{at} is {stated} in `{name}`, but {at} is {extent} in `{like.name}`"
            report.error("E208", message, dim.span, hint)
        dims[at] = extent or 1
    whole = pitch(declared, extents, sizes, report)
    return Tensor(name, role, declared.dtype.text, tuple(dims), tuple(dims.values()), pitch=whole)


def _served(
    setting: ast.EpilogueSetting, ops: Sequence[Operator], tensors: Mapping[str, ast.Tensor], report: Report
) -> Operator | None:
    """The operator whose result the epilogue assigns; it assigns each further result once, too."""
    _each_once(setting, report)
    makes = {tensors[op.writes].name.text: op for op in ops if op.writes in tensors}
    results = {t.name.text: role for role, t in tensors.items()}
    assigned = [a.name for a in setting.body if a.name.text in results]
    if not assigned:
        if makes:
            last = setting.body[-1].name if setting.body else None
            close = did_you_mean(last.text, makes) if last else None
            span = last.span if last and close else setting.keyword.span
            hint = close or f"end it with `{next(iter(makes))} = ...`"
            report.error("E304", f"the epilogue never assigns {listing(tuple(makes))}", span, hint)
        return None
    result = assigned[0]
    for other in assigned[1:]:
        if other.text == result.text:
            hint = "give the earlier value another name"
            report.error("E304", f"`{other.text}` is assigned twice", other.span, hint)
        else:
            message = f"the epilogue assigns `{other.text}` besides `{result.text}`"
            report.error("E304", message, other.span, "an epilogue belongs to one operator of its block")
    last = setting.body[-1].name
    if last.text not in results and last.text not in {t.name.text for t in setting.results}:
        message = f"`{last.text}` comes after the result `{result.text}` and has no effect"
        report.error("E304", message, last.span, "the assignment of a result must be the last one")
    if result.text not in makes:
        maker = next(op for op in OPERATORS.values() if op.writes == results[result.text])
        have = listing(tuple(makes))
        message = f"`{result.text}` is not a result of this block, which computes {have}"
        hint = f"assign {have}" if any(op.alone for op in ops) else f"assign {have}, or add `{maker}` to `op`"
        report.error("E305", message, result.span, hint)
        return None
    return makes[result.text]


def _each_once(setting: ast.EpilogueSetting, report: Report) -> None:
    """Reports further results that are not assigned exactly once."""
    for result in setting.results:
        name = result.name.text
        assigned = [a.name for a in setting.body if a.name.text == name]
        if not assigned:
            hint = f"write `{name} = ...`, or remove the result"
            report.error("E304", f"the epilogue never assigns `{name}`", result.name.span, hint)
        for again in assigned[1:]:
            report.error("E304", f"`{name}` is assigned twice", again.span, "give the earlier value another name")


def _other_function(name: str) -> str | None:
    """The hint for an unknown function."""
    if reason := habits.NO_FUNCTIONS.get(habits.plain(name)):
        return reason
    if expression := habits.FUNCTIONS.get(habits.plain(name)):
        return f"write `{expression}`"
    return did_you_mean(name, ir.FUNCTIONS)


def _is_type(e: ast.Expr) -> bool:
    return isinstance(e, ast.Reference) and e.name in TENSOR_DTYPES


class Body:
    """Turns the assignments into expressions of the IR."""

    #: What they are of, what they are made of, and a dim of operands.
    part, given, dim = "an epilogue", f"`{ACC}`", "k"

    def __init__(
        self,
        setting: ast.PointwiseSetting,
        tensors: Mapping[str, ast.Tensor],
        sums: Mapping[str, str],
        summed: Collection[str],
        made: str | None,
        names: Names,
        sizes: Sizes,
        report: Report,
    ) -> None:
        self._sums, self._summed, self._made = sums, summed, made
        self._setting, self._names, self._sizes, self._report = setting, names, sizes, report
        self._stated, self._type = tensors, number_type(tensors.values())
        self._tensors = {t.name.text for t in tensors.values()}
        self._operands = {o.name.text for o in setting.operands}
        self._results = {r.name.text for r in setting.results}
        self._assigned = {a.name.text for a in setting.body}
        self._locals: set[str] = set()
        self._used: set[str] = set()
        self._at = ""  # the name that is assigned
        self._faulty = False  # whether a value was too deep to be looked at, or lacks a name

    def check(self) -> tuple[ir.Assignment, ...]:
        statements = self._setting.body
        results = self._tensors | self._results
        last = max((i for i, a in enumerate(statements) if a.name.text in results), default=len(statements) - 1)
        body, locals_ = [], []
        for i, assignment in enumerate(statements):
            name = assignment.name
            self._at = name.text
            value = self._value(assignment)
            if name.text not in results and self._names.declare(name) and i < last:
                locals_.append(name)
            if name.text not in self._tensors:
                self._locals.add(name.text)
            if value is not None:
                body.append(ir.Assignment(name.text, value))
        if self._setting.lost is not None or self._faulty:  # lost or renamed statements may have used them
            return tuple(body)
        operands = [o.name for o in self._setting.operands if self._names.span(o.name.text) == o.name.span]
        for kind, declared in (("operand", operands), ("local", locals_)):
            for name in declared:
                if name.text not in self._used:
                    self._report.error("E306", f"the {kind} `{name.text}` is never used", name.span, "use or remove it")
        return tuple(body)

    def _value(self, assignment: ast.Assignment) -> ir.Expr | None:
        if assignment.name.text in self._summed and isinstance(assignment.value, ast.Reference):
            return ir.TensorRef(assignment.value.name)
        return self._expression(assignment.value)

    @property
    def _given(self) -> set[str]:
        return {ACC}

    def _expression(self, e: ast.Expr) -> ir.Expr | None:
        match e:
            case ast.Number():
                return self._number(e)
            case ast.Reference():
                return self._reference(e)
            case ast.Unary():
                operand = self._expression(e.operand)
                return operand and ir.Unary(e.op, operand)
            case ast.Binary():
                left, right = self._expression(e.left), self._expression(e.right)
                if e.op == "%":
                    self._report.error("E307", "`%` is for sizes", e.span, "values have `+ - * /`, and functions")
                    return None
                return left and right and ir.Binary(e.op, left, right)
            case ast.Call():
                return self._call(e)
            case ast.Faulty():
                self._faulty = True
        return None

    def _number(self, e: ast.Number) -> ir.Expr | None:
        value = float(e.text)
        largest = ir.LARGEST[self._type]
        if value >= ir.BEYOND[self._type]:
            message = f"the number is too large; an {self._type} holds at most {largest:.9g}"
            self._report.error("E005", message, e.span)
            return None
        return ir.Number(min(value, largest))

    def _reference(self, e: ast.Reference) -> ir.Expr | None:
        self._used.add(e.name)
        if e.name == ACC:
            return ir.Acc()
        if over := self._sums.get(e.name):
            hint = "give the summed value a name, and read that"
            self._report.error("E301", f"`{e.name}` is a sum over {over}, which an epilogue cannot read", e.span, hint)
            return None
        if e.name in self._operands:
            return ir.OperandRef(e.name)
        if e.name in self._locals:
            return ir.LocalRef(e.name)
        if sum(a.name.text == e.name for a in self._setting.body) > 1 and e.name in self._tensors:
            return None  # it is assigned twice, which is reported
        if (lost := self._setting.lost) is not None and (e.name in self._tensors or lost & {e.name, ast.ANY}):
            return None  # it may be one that is lost, or assigned to a sum that is
        known = {*self._given, *self._operands, *self._locals}
        if e.name in self._tensors:
            message = f"{self.part} cannot read the tensor `{e.name}`"
            hint = "declare other tensors as operands"
            hint = f"`acc` is the sum that the convolution computes; {hint}" if ACC in known else hint
            if self._sums or self._at in self._results:
                summed = ACC if e.name == self._made else e.name
                result = self._at if self._at in self._results else min(self._sums)
                hint += f"; a result that leaves out dims may be the sum of `{summed}`: `{result} = {summed}`"
        elif e.name in self._assigned:
            message, hint = (
                f"`{e.name}` is read before it is assigned",
                "an assignment can use only names assigned before it",
            )
        elif e.name in ir.FUNCTIONS:
            message = f"`{e.name}` is a function"
            hint = f"call it: `{e.name}({', '.join(ir.FUNCTIONS[e.name].parameters)})`"
        else:
            self._faulty = True
            message, hint = f"nothing is named `{e.name}`", self._other_value(e.name, known)
        self._report.error("E301", message, e.span, hint)
        return None

    def _other_value(self, name: str, known: Collection[str]) -> str:
        if name in self._sizes:
            return f"a let is for sizes; {self.part} takes numbers, {self.given} and operands"
        if habits.plain(name) in habits.SUM and ACC in known:
            return "the convolution's sum is `acc`"
        if constant := habits.CONSTANTS.get(habits.plain(name)):
            return f"write `{constant}`"
        declare = f"declare it: `operand {name}: f32[{self.dim}]`, with its own dims"
        return self._report.did_you_mean(name, known) or declare

    def _call(self, e: ast.Call) -> ir.Expr | None:
        name = e.function.text
        function = ir.FUNCTIONS.get(name)
        given = [a for a in e.arguments if function or not _is_type(a)]  # `cast(acc, f16)` has one thing wrong
        arguments = [self._expression(a) for a in given]
        if function is None:
            hint = _other_function(name) or f"the functions are {', '.join(ir.FUNCTIONS)}"
            self._report.error("E302", f"no function is named `{name}`", e.function.span, hint)
            return None
        if len(arguments) != function.arity:
            self._faulty |= len(arguments) < function.arity
            takes = plurals.counted(function.arity, "argument")
            hint = f"`{name}({', '.join(function.parameters)})` is {function.doc}"
            self._report.error("E303", f"`{name}` takes {takes}, not {len(arguments)}", e.span, hint)
            return None
        checked = tuple(a for a in arguments if a)
        return ir.Call(name, checked) if len(checked) == len(arguments) else None
