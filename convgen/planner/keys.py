"""The keys of measurements: a problem as text, and the problems that may stand in for one."""

from __future__ import annotations

from convgen.ir.problem import ConvProblem, Padding
from convgen.ir.tensor import Tensor

#: What is left out of a measurement that stands in for others: operands that have fewer elements than the result, such
#: as a bias, or the whole epilogue.
SMALL_OPERANDS = "small operands"
THE_EPILOGUE = "the epilogue"


def key(problem: ConvProblem, without: str = "") -> str:
    """The problem as text, names and the epilogue's arithmetic left out: what decides a kernel's speed; also
    `without` SMALL_OPERANDS or THE_EPILOGUE."""
    numbers = {
        "n": (problem.n,),
        "c": (problem.c,),
        "k": (problem.k,),
        "input": problem.input,
        "filter": problem.filter,
        "output": problem.output,
        "stride": problem.stride,
        "dilation": problem.dilation,
        "pad": tuple(f"{a}:{b}" for a, b in zip(problem.pad_lo, problem.pad_hi, strict=True)),
        "groups": (problem.groups,),
    }
    numbers |= {} if problem.padding is Padding.ZERO else {"padding": (str(problem.padding),)}
    numbers |= {"dynamic": problem.dynamic} if problem.dynamic else {}
    parts = [str(problem.op), *(f"{name}={'x'.join(map(str, v))}" for name, v in numbers.items())]
    tensors = (problem.x, problem.w, problem.y, problem.lowered)
    parts += [f"{t.role}={_layout(t)}" for t in tensors if t]
    parts += [f"acc={problem.accumulate}", f"epilogue={_epilogue_class(problem, without)}"]
    if problem.prologue:
        parts.append(f"prologue={'+'.join(['elementwise', *sorted(map(_layout, problem.prologue.operands))])}")
    return " ".join(parts)


def _layout(tensor: Tensor) -> str:
    """Element type, the dims in memory order (those of extent 1 move nothing, and are left out), a slice's pitch."""
    dims = "".join(d for d, e in zip(tensor.dims, tensor.extents, strict=True) if e != 1)
    return f"{tensor.dtype}:{dims}" + (f"/{tensor.pitch}" if tensor.pitch else "")


def _epilogue_class(problem: ConvProblem, without: str) -> str:
    epilogue = problem.epilogue
    if without == THE_EPILOGUE or epilogue is None or (epilogue.is_identity and not problem.further):
        return "none"
    least = problem.result.size if without == SMALL_OPERANDS else 0
    pointwise = [] if epilogue.is_identity else ["elementwise"]
    operands = sorted(_layout(t) for t in epilogue.operands if t.size >= least)
    results = sorted(f"{_kind(problem, t)} {_layout(t)}" for t in problem.further)
    return "+".join([*pointwise, *operands, *results])


def _kind(problem: ConvProblem, t: Tensor) -> str:
    """The kind of a further result: computed from the operator's result, or a sum of a tensor that the operator
    reads."""
    like = problem.like(t)
    return "result" if like is problem.result else f"sum({like.role})"


def standing_in(problem: ConvProblem) -> dict[str, str]:
    """The keys whose measurements may stand for a problem's, the nearest first, and what each leaves out."""
    packed = problem.packed  # which is as fast where a slice's pitch suits the same loads
    found: dict[str, str] = {}
    for same, what in ((problem, ""), (packed, "slices"), (packed, SMALL_OPERANDS), (packed, THE_EPILOGUE)):
        found.setdefault(key(same, what), what)
        found.setdefault(key(same.static, what), what or "dynamic sizes")
    return found
