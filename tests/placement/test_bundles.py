"""What a placed job could do with given slots: the planner's throughput as a function of the allocation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import PlacedModel, PlacedStage
from elastic_core.errors import UserError
from elastic_core.placement.bundles import MOST_BUNDLES, bundles, check, judged
from elastic_core.placement.placed_models import PoolType, placed_model, problem_of
from elastic_core.placement.planners.exact import Exact
from elastic_core.spec.layer_profiles import ModelProfile
from tests.policy.placed import CTR, a_model
from tests.policy.strategies import BUSY

seconds = st.sampled_from([0.1, 0.5, 1.0, 4.0])
models = st.builds(
    lambda layers, floor, alpha: a_model(*layers, floor=floor, alpha=alpha),
    st.lists(st.tuples(seconds, seconds), min_size=1, max_size=4), st.sampled_from([0.0, 60.0]),
    st.sampled_from([1.0, 0.9]),
)  # fmt: skip
pools = st.tuples(st.integers(0, 9), st.integers(0, 4)).map(
    lambda sizes: tuple(
        PoolType(kind, size, price)
        for kind, size, price in zip(("cpu", "h200"), sizes, (1.0, 4.0), strict=True)
        if size
    )
)


@pytest.mark.nightly
@settings(BUSY, max_examples=40)
@given(model=models, pool=pools, most=st.integers(1, 10))
def test_bundles_fit_the_pool_reach_the_floor_and_none_beats_another(
    model: PlacedModel, pool: tuple[PoolType, ...], most: int
) -> None:
    found = bundles(model, pool, (), range(1, most + 1), 100)
    assert len(found) <= MOST_BUNDLES
    capacity = {kind.name: kind.slots for kind in pool}
    for one in found:
        assert all(count <= capacity[kind] for kind, count in one.counts.items())
        assert one.num_slots <= most
        assert one.throughput >= model.floor * (1 - 1e-9)
        again = judged(model, pool, one.stages)
        assert again is not None
        assert again.throughput == pytest.approx(one.throughput)
    for one in found:
        for other in found:
            if one is not other and all(one.counts.get(k, 0) <= other.counts.get(k, 0) for k in capacity):
                assert other.throughput > one.throughput


@settings(BUSY, max_examples=25)
@given(model=models, pool=pools)
def test_the_optimum_of_the_pool_is_among_them_and_knows_that_it_is(
    model: PlacedModel, pool: tuple[PoolType, ...]
) -> None:
    total = sum(kind.slots for kind in pool)
    found = bundles(model, pool, (), range(1, total + 1), 100)
    if not found:
        return
    optimum = Exact().plan(problem_of(model, pool)).placement
    rates = [one.rate / one.throughput for one in found]
    cost = optimum.cost / 1e6 * 3600
    assert min(rates) == pytest.approx(cost, rel=2e-3)
    best = found[rates.index(min(rates))]
    assert best.gap is not None
    assert best.gap <= 5e-3


def test_fewer_slots_never_do_more() -> None:
    """The most that is known to be had of so many of each type, over pools that shrink."""
    reached = []
    for cpus, h200s in ((8, 4), (4, 2), (2, 1)):
        pool = (PoolType("cpu", cpus, 1.0), PoolType("h200", h200s, 4.0))
        reached.append(max(one.throughput for one in bundles(CTR, pool, (), range(1, 13), 100)))
    assert reached == sorted(reached, reverse=True)
    assert reached[0] == pytest.approx(400.0, rel=2e-3)


def test_a_learnt_plan_is_provisioned_for_every_allocation() -> None:
    pool = (PoolType("cpu", 4, 1.0), PoolType("h200", 2, 4.0))
    learnt = bundles(replace(CTR, planner="rl_lstm"), pool, (), range(1, 7), 100)
    exact = bundles(CTR, pool, (), range(1, 7), 100)
    assert max(one.throughput for one in learnt) == pytest.approx(max(one.throughput for one in exact), rel=0.1)
    assert (
        PlacedStage(layers=(0, 1), type="cpu", num_slots=1),
        PlacedStage(layers=(1, 2), type="h200", num_slots=1),
    ) in [one.stages for one in learnt]


def test_stages_that_do_not_cover_the_layers_are_judged_as_none() -> None:
    pool = (PoolType("cpu", 4, 1.0),)
    half = (PlacedStage(layers=(0, 1), type="cpu", num_slots=1),)
    other = (PlacedStage(layers=(0, 2), type="tpu", num_slots=1),)
    assert judged(CTR, pool, half) is None
    assert judged(CTR, pool, other) is None


def test_types_without_times_take_them_from_a_type_of_known_speed() -> None:
    profile = ModelProfile.model_validate(
        {"layers": [{"name": "a", "on": {"cpu": {"compute_seconds": 6.0, "exchange_seconds": 0.5}}}],
         "types": [{"name": "cpu", "relative_speed": 1.0}, {"name": "t4", "relative_speed": 3.0}]}
    )  # fmt: skip
    model = placed_model("exact", 0.0, 64, profile, ())
    assert model.types == ("cpu", "t4")
    assert dict(model.layers[0].on)["t4"].compute_seconds == 2.0
    assert dict(model.layers[0].on)["t4"].exchange_seconds == 0.5
    assert model.batch == 64


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ({}, "there are no layers, and the task declares none"),
        ({"layers": [{"name": "a", "on": {"cpu": {"compute_seconds": 1.0}}},
                     {"name": "b", "on": {"t4": {"compute_seconds": 1.0}}}]}, "no type of resource has times of every"),
        ({"layers": [{"name": "a", "on": {"cpu": {"compute_seconds": 1.0}}}] * 2}, "names of layers must differ"),
        ({"layers": [{"name": name, "on": {"cpu": {"compute_seconds": 1.0}}} for name in "abc"],
          "edges": [["a", "b"], ["a", "c"]]}, "edges must make the layers one chain"),
    ],
)  # fmt: skip
def test_a_profile_that_makes_no_chain_of_timed_layers_is_refused(profile: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        placed_model("exact", 0.0, 64, ModelProfile.model_validate(profile), ())


def test_a_type_that_the_job_names_needs_times_on_it() -> None:
    pool = (PoolType("cpu", 4, 1.0), PoolType("t4", 4, 1.0))
    with pytest.raises(UserError, match="'t4' is listed, and placement_profile has no times of every layer on it"):
        check(CTR, pool, ("cpu", "t4"), range(1, 5))
