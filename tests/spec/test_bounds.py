"""Whatever somebody writes as a spec: a spec or a `UserError`, soon, and never anything that cannot be stored."""

from __future__ import annotations

import copy
import random
import resource
import time
from collections.abc import Iterator
from typing import Any

import pytest

from elastic_core.domain import from_json, to_json
from elastic_core.errors import UserError
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.spec import JobSpec, bounds, parse_job_spec, total_samples

WHOLE: dict[str, Any] = {
    "name": "digits",
    "entry_point": "examples.digits:DigitsCNN",
    "params": {"learning_rate": 0.1, "sizes": [1, 2]},
    "work": {"epochs": 3},
    "batch": {"min": 8, "max": 64, "base": 8},
    "slots": {"min": 1, "max": 4, "types": ["cpu"]},
    "layouts": {"tensor": [1, 2], "pipeline": [1]},
    "segment": {"seconds": 60},
    "checkpoints": {"keep_last": 2},
    "deadline": "2030-01-31T18:00:00+01:00",
}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def changed(path: str, value: Any) -> dict[str, Any]:
    spec = copy.deepcopy(WHOLE)
    *parents, last = path.split(".")
    node = spec
    for name in parents:
        node = node[name]
    node[last] = value
    return spec


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("slots.max", 10**7, "less than or equal to 16384, seen 10000000"),
        ("slots.allowed", list(range(1, 5)) * 1000, "at most 1024 items"),
        ("batch.max", 10**30, "less than or equal to 1073741824"),
        ("work.epochs", 10**30, "less than or equal to 1000000000"),
        ("layouts.tensor", list(range(1, 40)), "at most 16 items"),
        ("checkpoints.keep_last", 10**30, "less than or equal to 10000"),
        ("params.rate", float("inf"), "the number inf is not one of JSON"),
        ("params.text", "a\0b", "holds the character NUL"),
        ("params.text", "\ud800", "half of a surrogate pair"),
        ("params.deep", nested(bounds.MOST_DEPTH), "nested more than 32 deep"),
        ("params.deep", nested(100_000), "nested more than 32 deep"),
        ("params.long", "x" * bounds.MOST_BYTES, "allowed are 65536"),
        ("deadline", "0001-01-01T00:00:00+14:00", "the year is 1; possible are 2000 to 2999"),
    ],
)
def test_what_is_over_a_bound_is_refused_with_the_bound(path: str, value: Any, says: str) -> None:
    with pytest.raises(UserError, match="the job spec has 1 problem") as error:
        parse_job_spec(changed(path, value))
    assert says in str(error.value)


def test_passes_over_a_large_data_set_are_bounded_too() -> None:
    spec = parse_job_spec(changed("work.epochs", 1e9))
    assert total_samples(spec, 1000) == 10**12
    with pytest.raises(UserError, match="1e\\+09 passes over 100000000 samples"):
        total_samples(spec, 10**8)


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 10**7, 10**30, -(10**30), 2**63, 2**64, 0.5, 1e308, float("inf"), float("nan"), "", "a",
    "\0", "\ud800", "\U0001f600", "../etc", "x" * 300, "1e400", [], [1], [None], [[]], {}, {"a": 1}, {"": None},
    nested(31), "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", [10**30] * 5, list(range(2000)),
)  # fmt: skip


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(node, dict):
        for key, value in node.items():
            yield from places(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from places(value, (*path, index))


def odd(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(ODD))


def mutated(draw: random.Random) -> Any:
    spec = copy.deepcopy(WHOLE)
    fields = [*JobSpec.model_fields, "nonsense"]
    for _ in range(draw.randint(1, 3)):
        if draw.random() < 0.3:
            spec[draw.choice(fields)] = odd(draw)
            continue
        *parents, last = draw.choice(list(places(spec)))
        node: Any = spec
        for part in parents:
            node = node[part]
        if draw.random() < 0.2 and isinstance(node, dict):
            del node[last]
        elif draw.random() < 0.2 and isinstance(node, dict):
            node[draw.choice(["min", "max", "odd", "\0", "tensor"])] = odd(draw)
        else:
            node[last] = odd(draw)
    return spec


def is_a_spec(data: Any) -> bool:
    """Or refused in words; what is one can be stored and looked at."""
    try:
        spec = parse_job_spec(data)
    except UserError:
        return False
    spec.limits()
    assert from_json(JobSpec, loads(dumps(to_json(spec)))) == spec  # as the ledger holds it
    return True


def seconds(data: Any) -> float:
    """Of the processor, that looking at a spec takes."""
    began = time.thread_time()
    is_a_spec(data)
    return time.thread_time() - began


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_ten_thousand_odd_specs_are_specs_or_refused_in_words() -> None:
    """Each within a tenth of a second of the processor, all of them within 200 MB."""
    draw = random.Random(20)
    accepted, memory = 0, peak_bytes()
    for _ in range(10_000):
        data = mutated(draw)
        began = time.thread_time()
        accepted += is_a_spec(data)
        if time.thread_time() - began > 0.1:  # a garbage collection may fall into it, or another process's cache
            assert min(seconds(data) for _ in range(3)) <= 0.1
    assert 100 < accepted < 9_900, "the mutations must reach both sides"
    assert peak_bytes() - memory <= 200e6
