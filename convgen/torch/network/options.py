"""Users' options for preparing networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_origin

import torch

from convgen.runtime.errors import WrongArguments


@dataclass(frozen=True)
class Options:
    """How networks are prepared.

    `measure`: times convgen beside aten on the GPU and takes the faster, else convgen wherever it serves.  `inductor`:
    compiles the rest by Inductor, with these options of torch._inductor.config, else runs it by aten.  `sums`: with
    Inductor, convolutions may give the sums of normalizations and means.  `tune`: measures the best few kernels of each
    convolution first (docs/tuning.md).
    """

    measure: bool = True
    inductor: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    sums: bool = True
    tune: str | None = None

    def __post_init__(self) -> None:
        """Raises WrongArguments: what Inductor refuses later looks like a model that cannot be compiled."""
        for name in ("measure", "inductor", "sums"):
            if not isinstance(value := getattr(self, name), bool):
                raise WrongArguments(f"{name} is {value!r}: expected True or False")
        if not isinstance(self.config, Mapping):
            hint = 'hint: options={"triton.cudagraphs": True}, for example'
            found = type(self.config).__name__
            raise WrongArguments(f"options is of type {found}: expected a dict of Inductor's options\n{hint}")
        object.__setattr__(self, "config", dict(self.config))
        known = torch._inductor.list_options() if self.config else ()
        if wrong := [name for name in self.config if name not in known]:
            own = "convgen's own, `measure`, `inductor` and `tune`, are keywords of `optimize`; the backend takes them "
            own += "and `sums` as options"
            hint = f"hint: torch._inductor.list_options() has the names; {own}"
            raise WrongArguments(f"Inductor has no option {', '.join(map(repr, wrong))}\n{hint}")
        for name, value in self.config.items():
            expected = torch._inductor.config.get_type(name)
            if get_origin(expected) is None and not isinstance(value, expected):
                raise WrongArguments(f"Inductor's option {name!r} is {value!r}: expected {expected.__name__}")
