"""The operators as a spec writes them: those of problems, and `transposed`, a face of dgrad."""

from __future__ import annotations

from dataclasses import dataclass

from convgen.ir.problem import OPS, Op

LOWERING = (Op.IM2COL, Op.COL2IM)


@dataclass(frozen=True)
class Operator:
    """The problem's operator, and the tensors that it reads and makes, by the roles that the spec gives them."""

    name: str
    op: Op
    reads: tuple[str, ...]
    writes: str

    @property
    def exchanged(self) -> bool:
        """Whether the spec's input is the problem's output, and the other way round."""
        return self.writes != OPS[self.op].writes

    @property
    def reads_padding(self) -> bool:
        """Whether it reads what the input is padded with; padding that repeats pixels is in gradients, too."""
        return "x" in OPS[self.op].reads

    @property
    def alone(self) -> bool:
        """Whether it goes into a block of its own."""
        return self.exchanged or self.op in LOWERING

    def __str__(self) -> str:
        return self.name


#: By name.  `transposed` spreads its input over its output, as dgrad spreads y over x.
OPERATORS: dict[str, Operator] = {op.value: Operator(op.value, op, row.reads, row.writes) for op, row in OPS.items()}
OPERATORS["transposed"] = Operator("transposed", Op.DGRAD, ("x", "w"), "y")
