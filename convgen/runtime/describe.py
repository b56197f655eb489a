"""A kernel's docstring, signature and table in a notebook, from its manifest."""

from __future__ import annotations

import html
from collections import Counter
from inspect import Parameter, Signature
from keyword import iskeyword

from convgen.runtime.manifest import Manifest


def title(m: Manifest) -> str:
    """A one-line title: the computation, the strategy, and the GPUs."""
    return f"{m.name}: {m.op} by {m.strategy} ({m.config}) for {m.target}"


def docstring(m: Manifest) -> str:
    """The text that `help` and a notebook's `kernel?` show."""
    tensors = "\n".join(f"    {tensor}" for tensor in m.arguments)
    results = "\n".join(f"    {tensor}" for tensor in m.results)
    returns = "Returns a tuple" if m.further else "Returns"
    if m.dynamic:
        tensors = f"    of any {', '.join(m.dynamic.dims)}, planned for these:\n{tensors}"
    spec = "\n".join(f"    {line}" for line in m.spec.splitlines())
    return (
        f"{title(m)}\n\nTensors, packed in this order of dims:\n\n{tensors}\n\n{returns}, in `out` if it is given:\n\n"
        f"{results}\n\nThe spec:\n\n{spec}\n"
    )


def signature(m: Manifest) -> Signature:
    """The signature of a call; a tensor's annotation is its type and shape."""
    given = m.arguments
    # Python has no argument `lambda=`, nor any by name before one that goes by place alone
    by_place = max((i for i, tensor in enumerate(given, 1) if iskeyword(tensor.name)), default=0)
    tensors = [
        Parameter(
            tensor.name,
            Parameter.POSITIONAL_ONLY if i < by_place else Parameter.POSITIONAL_OR_KEYWORD,
            annotation=str(tensor).removeprefix(f"{tensor.name}: "),
        )
        for i, tensor in enumerate(given)
    ]
    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in ("out", "stream", "workspace")]
    return Signature([*tensors, *options])


def table(m: Manifest, sizes: str = "") -> str:
    """A notebook's view, in HTML; `sizes` are those that `at` chose."""
    steps = Counter(map(str, m.steps))  # slices launch the same kernels time and again
    rows = {
        **({"sizes": f"{sizes}, by the plan for those of the problem"} if sizes else {}),
        "problem": m.spec,
        "strategy": m.strategy,
        "configuration": m.config,
        "target": m.target,
        "launches": "\n".join(f"{count} times {step}" if count > 1 else step for step, count in steps.items()),
    }
    body = "".join(
        f'<tr><th>{name}</th><td style="text-align: left"><pre>{html.escape(text)}</pre></td></tr>'
        for name, text in rows.items()
    )
    return f"<table><caption>{html.escape(m.name)}</caption>{body}</table>"
