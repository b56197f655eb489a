"""convgen in PyTorch: `pip install 'convgen[torch]'`.

    conv1d, conv2d, conv3d      torch.nn.functional's, with activation= and residual=
    Conv1d, Conv2d, Conv3d      torch.nn's; from_module takes a layer's own parameters
    optimize(model, example)    a model for inference: fused, each layer computed by what is fastest
    torch.compile(model, backend="convgen"), and reports()
    refresh()                   call it after changes of weights that torch does not count
    with enabled():             convgen computes the convolutions of unmodified models

convgen also computes gradients where it is faster; gradients() reports which.  What convgen does not serve, such as
tensors on a CPU or of other types, is computed by aten.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("convgen.torch needs PyTorch\nhint: pip install 'convgen[torch]'") from None

from convgen.torch import flops as _flops  # noqa: F401
from convgen.torch.functions import conv1d, conv2d, conv3d
from convgen.torch.modules import Conv1d, Conv2d, Conv3d
from convgen.torch.network.backend import compile_graph, reports
from convgen.torch.network.backend import register as _register
from convgen.torch.network.constants import refresh
from convgen.torch.network.optimize import Optimized, optimize
from convgen.torch.network.report import Report, Row
from convgen.torch.ops import gradients
from convgen.torch.override import Enabled, enabled

_register()

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "Enabled", "Optimized", "Report", "Row",
    "compile_graph", "conv1d", "conv2d", "conv3d", "enabled", "gradients", "optimize", "refresh", "reports",
]  # fmt: skip
