"""Why no strategy serves a convolution, as diagnostics that point at the cause in its spec."""

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


#: What to do about a convolution that is too large for every strategy.
_SMALLER = "take fewer images, smaller ones, or fewer channels"


def diagnostics(error: CannotServe, request: Request, target: Target) -> list[Diagnostic]:
    """Obstacles as diagnostics that point at the option, the strategy or the conv that is to blame.

    What several strategies say is said once; the last that no option of the spec is to blame for tells who serves.
    What the last strategy says alone is all that is said where `auto` asked for every one: it serves whatever is not
    too large.
    """
    spans = request.spans
    stated = _states(request.strategy, error)  # otherwise another was requested, and the spec's is not to blame
    whole = (stated and spans.get("strategy")) or spans.get("conv")
    names: dict[Obstacle, list[str]] = {}
    for name, obstacles in error.obstacles.items():
        for o in obstacles:
            names.setdefault(o, []).append(name)
    *_, last = error.obstacles
    if stated and request.strategy == "auto" and all(names[o] == [last] for o in error.obstacles[last]):
        message = f"no strategy serves {request.problem.name}: {error.obstacles[last][0].message}"
        return [Diagnostic("E401", message, whole, _SMALLER)]
    hints = {o: _own_hint(o, by[0], request, target) for o, by in names.items()}
    general = [o for o, hint in hints.items() if not _is_of_options(o, hint, request.options)]
    if general:
        hints[general[-1]] = _or_another(hints[general[-1]], error, request, target)
    return [
        Diagnostic(
            "E401",
            f"{listing(by, 'and').replace('`', '')} cannot serve {request.problem.name}: {o.message}",
            spans.get(f"strategy.{o.option}", whole) if stated else whole,
            hints[o] or None,
        )
        for o, by in names.items()
    ]


def _states(strategy: str, error: CannotServe) -> bool:
    """Whether the spec itself asks for what cannot be served."""
    return strategy in error.obstacles or (strategy == "auto" and error.obstacles.keys() >= set(strategies.AUTO))


def too_many(request: Request, target: Target, strategy: str, options: Options, n: int) -> UsageError | None:
    """Why there is no plan for n images: by the strategy that serves the spec's own, where one does."""
    problem = request.problem
    try:
        choice = choose(problem, target, strategy, options)
    except CannotServe:
        return None
    stated = options if strategy == choice.strategy.name else {}
    why = "; ".join(o.message for o in choice.strategy.obstacles(problem.with_images(n), target, stated))
    return UsageError(f"{problem.name}: no kernel for {n} images: {why}\nhint: use fewer images")


def _is_of_options(obstacle: Obstacle, hint: str, stated: Options) -> bool:
    """Whether other options than those that the spec states may lift an obstacle."""
    if obstacle.option == "kernel" and "kernel" in stated:
        return bool(hint)
    return bool(obstacle.option and stated.keys() - {"kernel"})


def _own_hint(obstacle: Obstacle, strategy: str, request: Request, target: Target) -> str:
    """An obstacle's hint; none where it is another kernel, which does not serve either."""
    word, _, kernel = obstacle.hint.partition(" ")
    if word == "kernel" and strategies.STRATEGIES[strategy].obstacles(request.problem, target, {"kernel": kernel}):
        return ""
    return obstacle.hint


def _or_another(hint: str, error: CannotServe, request: Request, target: Target) -> str:
    """The hint of an obstacle, and who serves the convolution as it is."""
    if error.obstacles.keys() >= set(strategies.AUTO):
        return hint
    names = serving(request.problem, target)
    found = [hint] if hint else []
    if any(name in error.obstacles for name in names) and not hint.startswith("kernel "):
        found.append(_without_kernel(request, target))
    others = [name for name in names if name not in error.obstacles]
    if others:
        who = f"{listing(others, 'and')} {'serves' if len(others) == 1 else 'serve'} it"
        found.append(f"take another strategy: {who}" if any(found) else who)
    return ", or ".join(filter(None, found)) or ("" if names else "no strategy serves it")


def _without_kernel(request: Request, target: Target) -> str:
    """The hint that, without this kernel, another one of the strategy would serve, with the other options."""
    if "kernel" not in request.options:
        return ""
    more = {name: value for name, value in request.options.items() if name != "kernel"}
    if strategies.STRATEGIES[request.strategy].obstacles(request.problem, target, more):
        return ""
    return f"leave `kernel {request.options['kernel']}` out"
