"""Who keeps which rows: all of them once, as even as can be, and whole where an optimizer needs it so."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from elastic_core.state.layout.layout import DATA, Mesh, Placement, Split, slice_box
from elastic_core.train.servers.kept_rows import LEAST_CUT, may_be_cut, placement_of_rows, rows_by_server

SHAPES = {"large": (130, 64), "row": (1, 5000), "small": (10, 3), "other": (8, 4), "scalar": (), "none": (0, 4)}


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
@pytest.mark.parametrize("cuts", [True, False])
def test_every_row_is_kept_once(servers, cuts):
    rows = rows_by_server(SHAPES, servers, cuts=cuts)
    assert list(rows) == list(SHAPES)
    for name, shape in SHAPES.items():
        assert len(rows[name]) == servers
        assert sum(rows[name]) == (shape[0] if shape else 1)


def test_only_what_is_large_is_cut_and_only_where_it_may_be():
    rows = rows_by_server(SHAPES, 3, cuts=True)
    assert rows["large"] == (44, 43, 43)
    assert all(sum(count > 0 for count in rows[name]) <= 1 for name in SHAPES if name != "large")
    whole = rows_by_server({"large": (130, 64), "next": (128, 64)}, 2, cuts=False)
    assert sorted(whole.values()) == [(0, 128), (130, 0)]
    assert LEAST_CUT <= 130 * 64


def test_placements_give_each_server_its_rows_and_workers_none():
    workers, shape = 2, (130, 64)
    rows = rows_by_server({"large": shape}, 3, cuts=True)["large"]
    placement = placement_of_rows(rows, shape, workers)
    mesh = Mesh((DATA,), (5,))
    boxes = [slice_box("large", shape, placement.cuts, mesh, mesh.coordinates(rank)) for rank in range(5)]
    assert boxes[:2] == [None, None]
    assert [(box.start[0], box.shape[0]) for box in boxes[2:] if box is not None] == [(0, 44), (44, 43), (87, 43)]
    assert placement == Placement((Split(DATA, 0, (0, 0, 44, 43, 43)),))
    assert placement_of_rows((0, 1), (), workers) == Placement((), {DATA: (3,)})


def test_optimizers_that_look_at_whole_tensors_keep_them_whole():
    parameters = list(nn.Linear(2, 2).parameters())

    class Mine(torch.optim.Adam):
        """Nobody knows what it does."""

    assert may_be_cut(torch.optim.AdamW(parameters))
    assert not may_be_cut(torch.optim.Adafactor(parameters))
    assert not may_be_cut(Mine(parameters))
