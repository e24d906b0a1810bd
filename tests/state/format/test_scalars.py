"""Scheduler states go through JSON unchanged."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.errors import UserError
from elastic_core.state.format.scalars import pack, unpack

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(plain)
def test_plain_data_comes_back_with_its_types(value):
    assert unpack(json.loads(json.dumps(pack(value), allow_nan=False))) == value


def test_counters_and_nan_come_back():
    back = unpack(json.loads(json.dumps(pack({"milestones": Counter({30: 2}), "best": math.nan}))))
    assert back["milestones"] == Counter({30: 2})
    assert isinstance(back["milestones"], Counter)
    assert math.isnan(back["best"])


def test_what_cannot_be_kept_is_named():
    with pytest.raises(UserError, match=r"scheduler.hook\[1\] is a object"):
        pack({"hook": [1, object()]})


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4], 0.5),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o, [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [3]
        ),
    ],
)
def test_torch_schedulers_go_on_from_their_packed_state(make):
    def rates(steps: int, state=None, lr: float = 0.1) -> tuple[list[float], object, float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
        scheduler, seen = make(optimizer), []
        if state is not None:
            scheduler.load_state_dict(unpack(json.loads(json.dumps(state))))
            optimizer.param_groups[0]["lr"] = lr
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            seen.append(optimizer.param_groups[0]["lr"])
        return seen, pack(scheduler.state_dict()), optimizer.param_groups[0]["lr"]

    whole, *_ = rates(8)
    first, state, lr = rates(4)
    assert first + rates(4, state, lr)[0] == whole
