"""One request after another, to every route that takes a spec or a part of one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from elastic_core.errors import UserError
from elastic_core.spec.form import form_fields, spec_from_form
from elastic_core.spec.inputs.sweep_texts import parse_grid
from elastic_core.spec.inputs.value_files import read_values
from elastic_core.spec.parts.job_group import MOST_MEMBERS
from tests.builders import FACTS
from tests.security.odd_specs import grammar
from tests.security.odd_specs.grammar import body_of, changed, odd
from tests.spec.test_bounds import WHOLES

PARENT = "parent"  # the job that is there: it trains, and has a checkpoint
REFUSED_BEFORE = b""  # nothing was sent: what reads the file, or the form, refused it in words


@dataclass(frozen=True, slots=True)
class Case:
    """A request. `route`: which of the ways it is; `absent`: it may name what is not there, and be told so (404)."""

    route: str
    path: str
    content: bytes
    method: str = "POST"
    signed: bool = False  # a service's request, else a user's
    absent: bool = False
    refused_before: bool = False
    records: bool = False  # the job itself, without a run of Airflow's
    jobs: int = 1  # that are asked for


@dataclass(frozen=True, slots=True)
class Drawn:
    """Where a case comes from: the same number gives the same case, under other ids at another attempt."""

    number: int
    checkpoint: int
    attempt: int = 0
    draw: random.Random = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "draw", random.Random(f"odd specs {self.number}"))

    @property
    def job_id(self) -> str:
        return f"odd-{self.number}-{self.attempt}"

    def case(self) -> Case:
        (make,) = self.draw.choices(tuple(WAYS), tuple(WAYS.values()))
        return make(self)


def _request(drawn: Drawn, route: str, path: str, value: Any, **more: Any) -> Case:
    return Case(route, path, body_of(drawn.draw, value), **more)


def _submit(drawn: Drawn) -> Case:
    asked = {"spec": grammar.spec(drawn.draw), "job_id": drawn.job_id}
    if drawn.draw.random() < 0.15:
        asked |= {drawn.draw.choice(["job_id", "warm_start", "odd"]): odd(drawn.draw)}
    return _request(drawn, "submit", "/api/v1/jobs", asked)


def _named(drawn: Drawn) -> Case:
    name = drawn.draw.choice(ODD_IDS) if drawn.draw.random() < 0.1 else drawn.job_id
    warm_start = odd(drawn.draw) if drawn.draw.random() < 0.1 else None
    asked = {"spec": grammar.spec(drawn.draw), "job_id": name, "warm_start": warm_start}
    return _request(drawn, "named", "/api/v1/jobs", asked)


ODD_IDS = ("a b", "ä", "x" * 300, "a__seg_0", "-a", "a%00b", "a\nb", "a\\b", "a/b", "a;b?c#d")
GRIDS: tuple[dict[str, Any], ...] = (
    {"params.learning_rate": [0.1, 0.2]}, {"batch.max": [64, 128], "priority": [1]}, {"params.sizes": [[1], [2]]},
    {"slots.max": [4]}, {"comm.warmup_steps": [10, 20, 30]}, {"seed": list(range(400))},
    {"params.a": list(range(16)), "params.b": list(range(16))},
)  # fmt: skip


def _sweep(drawn: Drawn) -> Case:
    draw = drawn.draw
    spec = grammar.spec(draw) if draw.random() < 0.5 else draw.choice(WHOLES)
    grid = draw.choice(GRIDS[:5]) if draw.random() < 0.9 else draw.choice(GRIDS)
    asked: dict[str, Any] = {"spec": spec, "group": drawn.job_id, "grid": grid}
    if draw.random() < 0.3:
        asked |= {"grid": None, "members": [{"params.learning_rate": 0.1}, {"batch.max": 128, "seed": 1}]}
    asked = changed(draw, asked, 2) if draw.random() < 0.6 else asked
    asked = {**asked, "group": drawn.job_id} if draw.random() < 0.9 else asked
    return _request(drawn, "sweep", "/api/v1/sweeps", asked, jobs=_asked_for(asked))


def _asked_for(sweep: Any) -> int:
    grid, members = (sweep.get(name) if isinstance(sweep, dict) else None for name in ("grid", "members"))
    if isinstance(grid, dict):
        return max(1, min(MOST_MEMBERS, prod(len(values) for values in grid.values() if isinstance(values, list))))
    return max(1, min(MOST_MEMBERS, len(members))) if isinstance(members, list) else 1


CHANGES = {"name": "further", "work": {"samples": 20_000}, "batch": {"min": 16, "max": 512},
           "slots": {"min": 1, "max": 2}, "priority": 3, "queue": "default", "checkpoints": {"keep_last": 2},
           "segment": {"seconds": 30},
           "comm": {"algorithm": "allreduce"}, "budget": 3.5, "prefer": "cost"}  # fmt: skip


def _fork(drawn: Drawn) -> Case:
    draw = drawn.draw
    changes = {name: CHANGES[name] for name in draw.sample(sorted(CHANGES), draw.randint(0, 4))}
    asked = {"job_id": drawn.job_id, "changes": changed(draw, changes) if draw.random() < 0.8 else changes}
    if draw.random() < 0.1:
        asked |= {draw.choice(["job_id", "code_now", "changes"]): odd(draw)}
    is_odd = draw.random() < 0.1
    number = draw.choice([0, -1, 10**9, 2**31, 2**63, 10**30]) if is_odd else drawn.checkpoint
    return _request(drawn, "fork", f"/api/v1/checkpoints/{number}/fork", asked, absent=is_odd)


def _set(drawn: Drawn) -> Case:
    values = {"priority": 2, "min_slots": 1, "max_slots": 4}
    asked = changed(drawn.draw, values) if drawn.draw.random() < 0.9 else values
    is_odd = drawn.draw.random() < 0.2
    name = quote(drawn.draw.choice(ODD_IDS), safe="") if is_odd else PARENT
    return _request(drawn, "set", f"/api/v1/jobs/{name}", asked, method="PATCH", absent=is_odd)


def _what_if(drawn: Drawn) -> Case:
    asked = {"policy": "fifo", "add": [{"type": "cpu", "num_slots": 2, "count": 1}], "without": ["node-b"],
             "jobs": {PARENT: {"priority": 5, "max_slots": 2}}}  # fmt: skip
    made = changed(drawn.draw, asked) if drawn.draw.random() < 0.95 else asked
    return _request(drawn, "what-if", "/api/v1/what-if", made, absent=True)


def _service(name: str, records: bool, **arguments: Any) -> Callable[[Drawn], Case]:
    def make(drawn: Drawn) -> Case:
        asked = {"spec": grammar.spec(drawn.draw), **({"job_id": drawn.job_id} if records or not arguments else {})}
        asked |= arguments
        if drawn.draw.random() < 0.2:
            asked = changed(drawn.draw, asked, 1)
        return _request(drawn, f"service {name}", f"/service/{name}", asked, signed=True, records=records)

    return make


PLAIN_FACTS = {"dataset_samples": FACTS.dataset_samples, "metric": "loss", "metric_mode": "min"}
FORM: Mapping[str, Any] = {
    "preset": "whole", "work_epochs": 2, "batch_max": 128, "slots_max": 3, "params": {"a": 1}, "deadline": None,
    "layouts_tensor": [1, 2], "goal": "none", "priority": 1,
}  # fmt: skip
FIELDS = sorted(one.name for one in form_fields({}) if one.name not in ("job_id", "warm_start"))


def _form(drawn: Drawn) -> Case:
    """The conf of a run of `elastic_job`: its first task makes a spec of it, and sends that."""
    draw = drawn.draw
    filled = {**changed(draw, dict(FORM)), draw.choice(FIELDS): odd(draw)} if draw.random() < 0.9 else dict(FORM)
    if draw.random() < 0.2:
        filled["spec"] = grammar.spec(draw)
    try:
        spec = spec_from_form(filled, {"whole": WHOLES[0]})
    except UserError:
        return Case("form", "", REFUSED_BEFORE, refused_before=True)
    asked = {"job_id": drawn.job_id, "spec": spec.model_dump(mode="json"), "facts": PLAIN_FACTS}
    return Case("form", "/service/submit", grammar.text_of(asked).encode(), signed=True, records=True)


def _file(drawn: Drawn) -> Case:
    """A file of YAML or JSON, and values on the command line, as `elastic jobs submit` reads them."""
    draw = drawn.draw
    is_yaml = draw.random() < 0.7
    content = grammar.yaml_of(draw) if is_yaml else body_of(draw, grammar.spec(draw))
    grid = draw.choice(GRID_TEXTS)
    with TemporaryDirectory() as folder:
        file = Path(folder, "spec.yaml" if is_yaml else "spec.json")
        file.write_bytes(content)
        try:
            asked = {"spec": read_values(file, "job spec"), "group": drawn.job_id, "grid": parse_grid(grid)}
        except UserError:
            return Case("file", "", REFUSED_BEFORE, refused_before=True)
    return Case("file", "/api/v1/sweeps", grammar.text_of(asked).encode(), jobs=_asked_for(asked))


GRID_TEXTS = (
    ["params.learning_rate=0.1,0.2"], ["params.a=x,y", "batch.max=128"], ["seed=1e999"], ["a"], ["=1"], ["seed="],
    ["seed=1,,2"], ["params.a=[1,2],{\"b\":3}"], ["params.a=" + "[" * 900 + "]" * 900], ["params.a=[" * 3],
    ["seed=NaN"], ["params.a=" + "9" * 5_000], ["seed=1", "seed=2"], ["params." + "a." * 500 + "b=1"], ["params.a=\0"],
    ["раrams.a=1"],
)  # fmt: skip

WAYS: Mapping[Callable[[Drawn], Case], float] = {
    _submit: 25, _named: 12, _sweep: 14, _fork: 12, _set: 7, _what_if: 2, _form: 8, _file: 8,
    _service("submit", True, facts=PLAIN_FACTS): 5,
    _service("check_submission", False): 3,
    _service("outlook", False, facts=PLAIN_FACTS): 4,
}  # fmt: skip
