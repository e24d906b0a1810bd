"""What only the task's own code knows, found before the job is submitted: `python -m
elastic_core.train.process.inspect`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from elastic_core import logs
from elastic_core.domain import from_json, to_json
from elastic_core.errors import UserError
from elastic_core.protocol.records import JobFacts
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, entry_points
from elastic_core.train.process import child

TIMEOUT_SECONDS = 600.0  # the data set is built, which may read a lot


def inspect_job(spec: JobSpec, settings: Settings) -> JobFacts:
    """Facts of a spec's task, from a process of its own; imports no torch here.

    Raises `UserError` for an entry point that is not allowed or does not exist, parameters that do not fit it, and
    whatever its code raises.
    """
    entry_points.check(spec.entry_point, settings.tasks)
    return from_json(JobFacts, child.call("elastic_core.train.process.inspect", spec, settings, [], TIMEOUT_SECONDS))


def main(argv: Sequence[str]) -> int:
    logs.configure("inspect")
    options = child.parser("elastic_core.train.process.inspect", __doc__).parse_args(argv)
    return child.answer(options.output, lambda: _facts(child.read_spec(options.spec), Settings()))


def _facts(spec: JobSpec, settings: Settings) -> Any:
    entry_points.check(spec.entry_point, settings.tasks)
    entry_points.reach(settings.project)
    from elastic_core.train.entry import is_task, job_facts, make_task  # imports torch

    entry = entry_points.load(spec.entry_point, settings.tasks)
    facts = job_facts(entry, spec)
    if spec.places_layers and facts.layers and not (spec.placement_profile and spec.placement_profile.layers):
        from elastic_core.train.process.placed_layers import layer_times

        if not is_task(entry):
            raise UserError(
                f"{spec.entry_point} is a training function, whose layers cannot be timed by the platform: give their "
                "times in placement_profile, or make it a Task class"
            )
        facts = replace(facts, layer_times=layer_times(make_task(entry, spec), facts.layers, spec))
    return to_json(facts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
