"""Jobs that a user has paused: no policy is asked about them, and each gets nothing, with the user's words as reason.

So every policy keeps a pause without knowing of it, and so does a plan that stays in force for want of an answer. A
paused job that runs is asked for a boundary like any other that is to have no slots, and commits there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elastic_core.domain import Snapshot, Target


def without_paused(snapshot: Snapshot) -> tuple[Snapshot, Mapping[str, Target]]:
    """What is left to decide, and what paused jobs get: the snapshot itself, and nothing, where there are none."""
    paused = {job.job_id: Target.nothing(job.paused) for job in snapshot.jobs if job.paused}
    if not paused:
        return snapshot, {}
    return replace(
        snapshot,
        jobs=tuple(job for job in snapshot.jobs if not job.paused),
        not_finished=tuple(dict.fromkeys((*snapshot.not_finished, *sorted(paused)))),
    ), paused
