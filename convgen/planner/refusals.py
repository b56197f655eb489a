"""Why no strategy serves a convolution, as diagnostics that point at what is to blame in its spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgen.diagnostics import Diagnostic, listing
from convgen.kernels import strategies
from convgen.planner import CannotServe, serving

if TYPE_CHECKING:
    from convgen.frontend import Request
    from convgen.kernels.base import Obstacle
    from convgen.targets import Target


def diagnostics(error: CannotServe, request: Request, target: Target) -> list[Diagnostic]:
    """Obstacles as diagnostics that point at the option, the strategy or the conv that is to blame.

    What several strategies say is said once; the last that no option is to blame for tells who serves.
    """
    spans = request.spans
    whole = spans.get("strategy") or spans.get("conv")
    names: dict[Obstacle, list[str]] = {}
    for name, obstacles in error.obstacles.items():
        for o in obstacles:
            names.setdefault(o, []).append(name)
    general = [o for o in names if not (o.hint or o.option)]
    hints = {general[-1]: _who_serves(error, request, target)} if general else {}
    return [
        Diagnostic(
            "E401",
            f"{listing(by, 'and').replace('`', '')} cannot serve {request.problem.name}: {o.message}",
            spans.get(f"strategy.{o.option}", whole),
            hints.get(o, o.hint) or None,
        )
        for o, by in names.items()
    ]


def _who_serves(error: CannotServe, request: Request, target: Target) -> str:
    if error.obstacles.keys() >= set(strategies.AUTO):
        return ""
    names = serving(request.problem, target)
    verb = "serves" if len(names) == 1 else "serve"
    return f"{listing(names, 'and')} {verb} it" if names else "no strategy serves it"
