"""Everything a worker imports, loaded once into the fork server. Nothing here may start a thread."""

import os
from importlib import import_module

from elastic_core.host.environment import ALLOCATION

os.environ.update(ALLOCATION)  # torch reads it once

import torch

for name in (
    "torch._dynamo",  # torch's optimizers import it at their first step
    "elastic_core.protocol.http_client",
    "elastic_core.state.stores.local_store",
    "elastic_core.train.entry",
    "elastic_core.train.gradients.pipe",  # and with it torch's parallel libraries
    "elastic_core.train.styles",
    "elastic_core.train.process.worker",
    "hypothesis.strategies",  # what modules of tests import, of which ranks run functions
    "pytest",
    "tests.state.changing_ranks",
    "tests.train.job",
    "tests.train.tasks",
):
    import_module(name)
torch.set_num_threads(1)
