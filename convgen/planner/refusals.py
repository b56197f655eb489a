"""Why no strategy serves a convolution, as diagnostics that point at what is to blame in its spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convgen.diagnostics import Diagnostic, listing
from convgen.kernels import strategies
from convgen.planner import CannotServe, choose, serving
from convgen.spec import UsageError

if TYPE_CHECKING:
    from convgen.frontend import Request
    from convgen.kernels.base import Obstacle, Options
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
    general = [o for o in names if not o.option]
    hints = {general[-1]: _or_another(general[-1].hint, error, request, target)} if general else {}
    return [
        Diagnostic(
            "E401",
            f"{listing(by, 'and').replace('`', '')} cannot serve {request.problem.name}: {o.message}",
            spans.get(f"strategy.{o.option}", whole),
            hints.get(o, o.hint) or None,
        )
        for o, by in names.items()
    ]


def too_many(request: Request, target: Target, strategy: str, options: Options, n: int) -> UsageError | None:
    """Why there is no plan for n images: by the strategy that serves the spec's own, where one does."""
    problem = request.problem
    try:
        choice = choose(problem, target, strategy, options)
    except CannotServe:
        return None
    stated = options if strategy == choice.strategy.name else {}
    why = "; ".join(o.message for o in choice.strategy.obstacles(problem.with_images(n), target, stated))
    return UsageError(f"{problem.name}: no kernel for {n} images: {why}\nhint: ask for fewer images")


def _or_another(hint: str, error: CannotServe, request: Request, target: Target) -> str:
    """The hint of an obstacle, and who serves the convolution as it is."""
    if error.obstacles.keys() >= set(strategies.AUTO):
        return hint
    names = serving(request.problem, target)
    if not names:
        return hint or "no strategy serves it"
    who = f"{listing(names, 'and')} {'serves' if len(names) == 1 else 'serve'} it"
    return f"{hint}, or take another strategy: {who}" if hint else who
