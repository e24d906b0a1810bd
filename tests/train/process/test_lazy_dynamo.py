"""The stand-in for torch's compiler front end, each time in a fresh process: nobody notices it but the clock."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.train.job import PROJECT

TRAIN = """
import sys
import torch
import torch.distributed as dist
from elastic_core.train.process.lazy_dynamo import install

assert install() and not install()
stand_in = sys.modules["torch._dynamo"]
model = torch.nn.Linear(4, 4)
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
wrapped = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())

def train():
    wrapped(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())

train()
train()
assert sys.modules["torch._dynamo"] is torch._dynamo is stand_in, "training has imported the compiler"
"""
AFTER = {
    "compiling": """
assert stand_in.utils.counters is not None
assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2
""",
    "a submodule first": "import torch._dynamo.utils as u; assert u is sys.modules[u.__name__] is torch._dynamo.utils",
}
REAL = """
assert type(sys.modules["torch._dynamo"]).__module__ == "builtins" and torch._dynamo is sys.modules["torch._dynamo"]
train()
dist.destroy_process_group()
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("touch", AFTER)
def test_training_leaves_it_and_anything_else_gets_the_real_module(touch):
    done = subprocess.run(
        [sys.executable, "-c", TRAIN + AFTER[touch] + REAL], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
