"""Which named exchange of a job is compared with the exact sum, and by what."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from elastic_core.domain import Allocation, Layout, Slot
from elastic_core.host.rundir import RunDir
from elastic_core.spec.parts.job_comm import Comm
from elastic_core.train.gradients.compared import against_exact
from elastic_core.train.gradients.gradients_of import gradients_of
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import Places
from tests.train import forked


def compared(group: Group, comm: str, nodes: str, **options: bool) -> str:
    slots = tuple(Slot(node=node, index=i, type="cpu") for i, node in enumerate(nodes))
    layout = Layout(data=group.world)
    allocation = Allocation(slots=slots, global_batch=8, layout=layout, comm=comm)
    model, spec = nn.Linear(4, 4), Comm.model_validate({"algorithm": comm, **options})
    gradients = gradients_of(
        model, torch.optim.SGD(model.parameters()), None, group, Places(group, layout), allocation, spec,
        find_unused_parameters=False, fixed_parts=False,
    )  # fmt: skip
    against = against_exact(gradients, group, allocation, spec)
    gradients.close()
    return "nothing" if against is None else "told to decisions" if against.costs() else "of these nodes"


def each(folder: str, rank: int, world: int) -> int:
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    assert compared(group, "allreduce", "aab") == "nothing"
    assert compared(group, "bytegrad", "aab") == "told to decisions"
    assert compared(group, "bytegrad", "aab", hierarchical=True) == "of these nodes"
    assert compared(group, "bytegrad", "aaa", hierarchical=True) == "told to decisions", "there is nothing within"
    assert compared(group, "local_sgd", "aab") == "told to decisions"
    assert compared(group, "local_sgd", "aab", hierarchical=True) == "nothing"
    group.close()
    return 0


def test_within_nodes_first_an_exchange_of_gradients_is_compared_for_these_nodes_and_an_average_is_not(tmp_path):
    processes = [forked.start(each, str(tmp_path), rank, 3, log=tmp_path / f"log{rank}") for rank in range(3)]
    assert forked.join(processes) == [0] * 3, [path.read_text() for path in tmp_path.glob("log*")]
