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
from elastic_core.spec.layer_profiles import ModelProfile

WHOLE: dict[str, Any] = {
    "name": "digits",
    "entry_point": "examples.digits:DigitsCNN",
    "params": {"learning_rate": 0.1, "sizes": [1, 2]},
    "work": {"epochs": 3},
    "batch": {"min": 8, "max": 64, "base": 8},
    "slots": {"min": 1, "max": 4, "types": ["cpu"]},
    "layouts": {"tensor": [1, 2], "pipeline": [1]},
    "comm": {"algorithm": "allreduce", "allow": "exact", "warmup_steps": 10, "guard": True},
    "segment": {"seconds": 60},
    "checkpoints": {"keep_last": 2},
    "deadline": "2030-01-31T18:00:00+01:00",
    "group": {"id": "night", "name": "digits", "index": 3, "swept": ["batch.max"]},
}
# What whole models cut into layouts cannot have besides.
SERVED: dict[str, Any] = {
    **{name: value for name, value in WHOLE.items() if name != "layouts"},
    "sync": "either",
    "servers": {"min": 1, "max": 2},
}
AVERAGED: dict[str, Any] = {
    **{name: value for name, value in WHOLE.items() if name != "layouts"},
    "comm": {"algorithm": "local_sgd", "allow": "averaging", "interval": 4, "hierarchical": True},
}
PLACED: dict[str, Any] = {
    **{name: value for name, value in WHOLE.items() if name not in ("layouts", "comm")},
    "placement": "auto",
    "placement_floor": 10,
    "placement_profile": {
        "batch": 8,
        "layers": [
            {"name": "a", "kind": "embedding", "on": {"cpu": {
                "compute_seconds": 0.01, "exchange_seconds": 0.002, "alpha": 0.9, "beta": 0.8}},
             "weight_bytes": 4096, "activation_bytes": 512},
            {"name": "b", "on": {"h200": {"compute_seconds": 0.001}}},
        ],
        "types": [{"name": "cpu", "relative_speed": 1.0, "memory_bytes": 1e9, "link_bytes_per_second": 1e9,
                   "is_cpu": True, "shards_weights": True}, {"name": "h200", "relative_speed": 20}],
        "edges": [["a", "b"]],
    },
}  # fmt: skip
WHOLES = (WHOLE, SERVED, AVERAGED, PLACED)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def changed(path: str, value: Any, whole: dict[str, Any] = WHOLE) -> dict[str, Any]:
    spec = copy.deepcopy(whole)
    *parents, last = path.split(".")
    node: Any = spec
    for name in parents:
        node = node[int(name) if isinstance(node, list) else name]
    node[int(last) if isinstance(node, list) else last] = value
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


def test_what_is_too_large_is_not_looked_through() -> None:
    """Looking at each of a million values takes a second; how large they are as JSON, a few milliseconds."""
    seen = []

    class Long(list[int]):
        def __iter__(self) -> Iterator[int]:
            seen.append(1)
            return super().__iter__()

    with pytest.raises(UserError, match="it has 200034 bytes as JSON; allowed are 65536"):
        parse_job_spec({"name": "digits", "params": Long([1] * 66_668)})
    assert len(seen) == 1, "once it was written as JSON"


def test_of_thousands_of_problems_some_are_told_and_how_many_there_are() -> None:
    with pytest.raises(UserError, match="the job spec has 4000 problems") as error:
        parse_job_spec(changed("batch", {**WHOLE["batch"], **{f"k{number}": 1 for number in range(4_000)}}))
    lines = str(error.value).splitlines()
    assert (len(lines), lines[-1]) == (52, "- and 3950 more")


TIMES, LAYER = "placement_profile.layers.0.on.cpu", "placement_profile.layers.0"


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (f"{TIMES}.compute_seconds", 1e300, "less than or equal to 1000000000"),
        (f"{TIMES}.compute_seconds", 1e-300, "greater than or equal to 0.000000001"),
        (f"{TIMES}.compute_seconds", 0, "greater than or equal to 0.000000001"),
        (f"{TIMES}.exchange_seconds", 1e300, "less than or equal to 1000000000"),
        (f"{TIMES}.alpha", 1.5, "less than or equal to 1"),
        (f"{LAYER}.weight_bytes", 1e300, "less than or equal to 1000000000000000000"),
        (f"{LAYER}.activation_bytes", 1e300, "less than or equal to 1000000000000000000"),
        (f"{LAYER}.name", "x" * 201, "at most 200 characters"),
        (f"{LAYER}.kind", "x" * 33, "at most 32 characters"),
        (f"{LAYER}.on", {"x" * 33: {"compute_seconds": 1}}, "at most 32 characters"),
        (f"{LAYER}.on", {f"t{index}": {"compute_seconds": 1} for index in range(65)}, "at most 64 items"),
        ("placement_profile.batch", 1e300, "less than or equal to 1073741824"),
        ("placement_profile.batch", 1e-300, "greater than or equal to 0.000000001"),
        ("placement_profile.types.0.relative_speed", 1e300, "less than or equal to 1000000000"),
        ("placement_profile.types.0.relative_speed", 1e-300, "greater than or equal to 0.000000001"),
        ("placement_profile.types.0.memory_bytes", 1e300, "less than or equal to 1000000000000000000"),
        ("placement_profile.types.0.link_bytes_per_second", 1e-300, "greater than or equal to 1"),
        ("placement_profile.types.0.link_bytes_per_second", 1e300, "less than or equal to 1000000000000000000"),
        ("placement_profile.edges", [["a", "x" * 201]], "at most 200 characters"),
        ("placement_profile.edges", [["a", "b"]] * 1001, "at most 1000 items"),
    ],
)
def test_layers_that_a_user_describes_are_bounded_too(path: str, value: Any, says: str) -> None:
    with pytest.raises(UserError, match=r"the job spec has [1-3] problem") as error:
        parse_job_spec(changed(path, value, PLACED))
    assert says in str(error.value)


def numbers_without_a_bound(kind: Any, where: str) -> Iterator[str]:
    """In the JSON schema of a model: numbers without both bounds, lists, objects and texts without an upper one."""
    schema = kind.model_json_schema(mode="validation")
    waiting = [(where, schema)]
    while waiting:
        path, node = waiting.pop()
        if "$ref" in node:
            waiting.append((path, schema["$defs"][node["$ref"].rsplit("/", 1)[1]]))
        waiting += [(path, option) for option in node.get("anyOf", ())]
        waiting += [(f"{path}.{name}", part) for name, part in node.get("properties", {}).items()]
        for part in ("items", "additionalProperties"):
            if isinstance(node.get(part), dict):
                waiting.append((f"{path}[]", node[part]))
        kind_of = node.get("type")
        if kind_of in ("number", "integer"):
            if not (node.keys() & {"minimum", "exclusiveMinimum"} and node.keys() & {"maximum", "exclusiveMaximum"}):
                yield f"{path}: a number"
        elif kind_of == "array" and "maxItems" not in node:
            yield f"{path}: a list"
        elif kind_of == "string" and not node.keys() & {"maxLength", "enum", "const", "pattern"}:
            yield f"{path}: a text"
        elif kind_of == "object" and isinstance(node.get("additionalProperties"), dict) and "maxProperties" not in node:
            yield f"{path}: an object"


def test_every_number_list_and_text_of_a_profile_has_a_bound() -> None:
    assert list(numbers_without_a_bound(ModelProfile, "placement_profile")) == []


def test_the_specs_that_are_mutated_are_specs() -> None:
    for whole in WHOLES:
        assert is_a_spec(whole)
    given = {name for whole in WHOLES for name in whole}
    missing = {"seed", "precision", "audit", "prefer", "priority", "queue", "registered_model", "budget"}
    assert given >= set(JobSpec.model_fields) - missing, "every field with parts is mutated within"


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
    spec = copy.deepcopy(draw.choice(WHOLES))
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
