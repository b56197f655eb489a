"""The frontend: a spec's text to checked requests, or every error that it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from convgen.diagnostics import RenamedWarning, Report, SpecError, warn
from convgen.frontend.request import AUTO, Request
from convgen.frontend.strategy import OptionRow, Renames

__all__ = ["AUTO", "Request", "load"]


def load(
    text: str,
    path: str = "<text>",
    defines: Mapping[str, int] | None = None,
    strategies: Mapping[str, Sequence[OptionRow]] | None = None,
    targets: Collection[str] | None = None,
    renamed: Renames | None = None,
) -> list[Request]:
    """The requests of a spec, in its order; a conv with several operators gives one for each.

    `path` names the spec in messages.  `defines` override its lets.  `strategies` gives each strategy's
    options and `targets` the known targets; where None, those names are not checked.  `renamed` knows names that
    strategies and options had: they are read as the present ones, with a RenamedWarning.
    Raises SpecError with all diagnostics of the file.
    """
    from convgen.frontend.check import check
    from convgen.frontend.parser import parse

    text = text.removeprefix("\ufeff")
    report = Report()
    spec = parse(text, report)
    requests = check(spec, defines or {}, strategies, targets, report, renamed) if spec.whole else []
    if len(report):
        raise SpecError(report.diagnostics, path, text)
    for span, message in report.warnings:
        warn(RenamedWarning(f"{path}:{span.line}:{span.column}: {message}", span))
    return requests
