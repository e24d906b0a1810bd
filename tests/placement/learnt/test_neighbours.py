"""Which choices lie near one."""

from __future__ import annotations

import numpy as np

from elastic_core.placement.learnt.neighbours import neighbours


def test_they_hold_changes_of_layers_stages_and_borders_and_not_the_choice_itself() -> None:
    choice = np.asarray([0, 0, 0, 1, 1])
    found = {tuple(one) for one in neighbours(choice, 3).tolist()}
    assert (0, 2, 0, 1, 1) in found  # a layer
    assert (2, 2, 2, 1, 1) in found  # a stage
    assert (1, 1, 1, 1, 1) in found  # two stages as one
    assert (0, 0, 0, 0, 1) in found and (0, 1, 1, 1, 1) in found  # noqa: PT018 - a border moved by one and by two
    assert tuple(choice) not in found
    assert len(found) == len(neighbours(choice, 3))


def test_an_inner_stage_moves_by_a_layer() -> None:
    found = {tuple(one) for one in neighbours(np.asarray([0, 1, 1, 0, 2]), 3).tolist()}
    assert {(0, 0, 1, 1, 2), (1, 1, 0, 0, 2), (0, 1, 1, 1, 0), (0, 1, 0, 2, 2)} <= found


def test_one_layer_on_one_type_has_none() -> None:
    assert len(neighbours(np.asarray([0]), 1)) == 0
