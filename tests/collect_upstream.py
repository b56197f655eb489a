"""Copies the convolutions of PyTorch's and ONNX's own tests to tests/data, for tests/text/test_upstream.py.

    python tests/collect_upstream.py torch    # in an environment with torch; the samples are in its wheel
    python tests/collect_upstream.py onnx     # in one with onnx

Of PyTorch: the samples and error inputs of OpInfo (torch.testing._internal.common_methods_invocations), and the module
tests of common_nn; shapes and parameters, not data.  Of ONNX: the node tests of operators that convolve, with data.
Tests read the copies, so that they need neither package's testing modules, and counts stay what the docs say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def main() -> None:
    (which,) = sys.argv[1:]
    cases: list[dict[str, Any]]
    if which == "torch":
        import torch

        cases, version = [*_op_infos(), *_modules()], torch.__version__.partition("+")[0]
    else:
        import onnx

        cases, version = _nodes(), onnx.__version__
    lines = ",\n".join(json.dumps(case) for case in cases)
    path = DATA / f"{which}_convolutions.json"
    path.write_text(f'{{"version": "{version}", "cases": [\n{lines}\n]}}\n')
    print(f"{len(cases)} cases of {which} {version} in {path}")


def _plain(value: Any) -> Any:
    """Tensors as {"shape": ...}, with their types where these are not float32."""
    if hasattr(value, "shape"):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"shape": list(value.shape)} | ({} if dtype == "float32" else {"dtype": dtype})
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _sample(name: str, sample: Any) -> dict[str, Any]:
    arguments = [_plain(a) for a in (sample.input, *sample.args)]
    kwargs = {k: _plain(v) for k, v in sample.kwargs.items()}
    return {"source": "OpInfo", "name": name, "args": arguments, "kwargs": kwargs}


def _op_infos() -> list[dict[str, Any]]:
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    found = []
    for op in op_db:
        name = op.name.removeprefix("nn.functional.")
        if not op.name.startswith("nn.functional.") or not ("conv" in name or "fold" in name):
            continue
        found += [_sample(name, s) for s in op.sample_inputs("cpu", torch.float32)]
        errors = op.error_inputs("cpu") if op.error_inputs_func else ()
        found += [{**_sample(name, e.sample_input), "error": e.error_regex} for e in errors]
    return found


def _modules() -> list[dict[str, Any]]:
    from torch.testing._internal import common_nn

    found = []
    for test in (*common_nn.module_tests, *common_nn.get_new_module_tests()):
        made = test.get("constructor") or getattr(__import__("torch").nn, test.get("module_name") or "", None)
        name = test.get("fullname") or f"{test.get('module_name')}_{test.get('desc') or 'plain'}"
        if not name.startswith("Conv") or made is None:
            continue
        module = made(*test.get("constructor_args", ()))
        kwargs = {p: _plain(getattr(module, p)) for p in PARAMETERS} | {"bias": module.bias is not None}
        if "Transpose" in name:
            kwargs["output_padding"] = list(module.output_padding)
        shape = test.get("input_size") or test["input_fn"]().shape
        kind = {"source": "common_nn", "name": name, "module": type(module).__name__}
        found.append({**kind, "input": list(shape), "kwargs": kwargs})
    return found


#: What is kept of a module.
PARAMETERS = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
#: ONNX's operators that convolve.
OPERATORS = ("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "CausalConvWithState", "Col2Im")


def _nodes() -> list[dict[str, Any]]:
    import onnx
    from onnx.backend.test.case.node import collect_testcases

    found = []
    for test in collect_testcases(None):
        nodes = test.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in OPERATORS:
            continue
        (node,) = nodes
        names = [i.name for i in test.model.graph.input]
        given = dict(zip(names, test.data_sets[0][0], strict=True))
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        found.append(
            {
                "name": test.name.removeprefix("test_"),
                "operator": node.op_type,
                "attributes": {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()},
                "inputs": [_array(given[name]) if name else None for name in node.input],
                "outputs": [_array(a) for a in test.data_sets[0][1]],
            }
        )
    return found


def _array(a: Any) -> dict[str, Any]:
    return {"dtype": str(a.dtype), "shape": list(a.shape), "data": [float(f"{v:.9g}") for v in a.reshape(-1).tolist()]}


if __name__ == "__main__":
    main()
