"""What ptxas says of a strategy's kernels."""

from __future__ import annotations

from tma_specs import TARGET, compilation, spec

from convgen.ir.problem import ConvProblem
from convgen.kernels.base import Options
from convgen.runtime.nvrtc import Resources, compile_source


def compiled(problem: ConvProblem, strategy: str, options: Options, epilogue: str = "") -> Resources:
    """Of the kernel, not of the launches before and behind it, whose registers are there, too."""
    made = compilation(spec(problem, strategy, options, epilogue))
    resources = compile_source(made.source, TARGET).resources
    assert set(resources) == {one.entry for one in made.plan.launches}
    for launch in made.plan.launches:
        found = resources[launch.entry]
        allocated = -(-found.registers // 8) * 8
        assert allocated * launch.block * launch.blocks_per_sm <= TARGET.registers_per_sm
    found = resources[made.plan.launch().entry]
    assert found.shared == 0
    return found
