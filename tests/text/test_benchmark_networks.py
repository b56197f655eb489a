"""Networks that the benchmarks write out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import networks

torch = pytest.importorskip("torch")

WRITTEN_OUT = [name for name, network in networks.NETWORKS.items() if "_written_out" in network.make.__qualname__]


@pytest.mark.costly
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_network_takes_the_input_that_the_table_states(name: str):
    """Shapes alone: nothing is computed on torch's meta device."""
    network = networks.NETWORKS[name]
    with torch.device("meta"), torch.no_grad():
        result = networks._tensor(network.make().eval()(torch.zeros(2, *network.shape)))
    assert result.shape[0] == 2 and result.dtype == torch.float32


def test_the_table_has_every_network_that_is_written_out():
    import models

    with torch.device("meta"):
        assert sorted(type(networks.NETWORKS[name].make()).__name__ for name in WRITTEN_OUT) == sorted(models.__all__)
