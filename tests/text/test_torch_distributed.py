"""Models of torch.distributed, in a group of one process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import convgen.torch
from convgen.runtime.errors import WrongArguments

if not dist.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)
        self.norm.running_mean.add_(0.5)

    def forward(self, x):
        return self.b(self.norm(self.a(x)).relu())


def test_a_graph_that_ddp_splits_has_its_buffers(monkeypatch):
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 512)  # graphs are split where a bucket is full
    torch._dynamo.reset()
    model, x = nn.parallel.DistributedDataParallel(Network(), bucket_cap_mb=0.0005).eval(), torch.randn(2, 3, 8, 8)
    compiled = torch.compile(model, backend="convgen", options={"inductor": False})
    known = len(convgen.torch.reports())
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model.module.norm.running_mean.add_(1)
        torch.testing.assert_close(compiled(x), model(x))
    first, second = convgen.torch.reports()[known:]
    assert first.notes == ["1 BatchNorm is folded into the convolution before it"]
    assert [row.layer for row in (*first, *second)] == ["a", "b"]


def test_a_model_that_fsdp_shards_is_refused():
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
    model, x = Network().eval(), torch.randn(2, 3, 8, 8)
    expected = model(x)
    later = convgen.torch.optimize(model, x, inductor=False)
    fully_shard(model.b, mesh=mesh)
    with pytest.raises(WrongArguments, match="module 'b' of the model is sharded by FSDP"):
        convgen.torch.optimize(model, x)
    with pytest.raises(WrongArguments, match="sharded by FSDP"):
        later(x)
    torch.testing.assert_close(model(x), expected)
    with pytest.raises(WrongArguments, match="sharded by FSDP"):
        later(x[:1])
