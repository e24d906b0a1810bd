"""The one place that says whether a caller may do something to a queue or a job.

Roles of a caller, the strongest first: *unrestricted* (the operator at the host, an administrator of Airflow), *owner*
of the queue, *member* of it, nobody of it. A queue that names neither owners nor members is open: whoever Airflow lets
start jobs is a member there and may act on all of its jobs, too. Whether Airflow lets somebody look or act at all is
asked before (`rpc.http_api`); looking is not restricted by queues.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from elastic_core.errors import Forbidden
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.service import DecisionControl, JobRecords
from elastic_core.spec.cluster import GROUP, QueueSpec


class Action(StrEnum):
    SUBMIT = "submit"
    CANCEL = "cancel"
    REVIVE = "revive"
    ROLLBACK = "roll back"
    FORK = "fork"
    WARM_START = "start a job from"
    ATTACH = "attach a run to"
    BOUNDARY = "ask for a boundary"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    SET = "set"
    SET_POLICY = "set the policy"
    SET_CLUSTER = "set the cluster"
    SET_ASIDE = "set aside"
    TAKE_BACK = "take back"
    PROMOTE = "promote"
    REPLACE = "replace"  # a champion, by another version
    IMPORT = "import history"
    ROTATE = "rotate secrets"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the action is done to. Without a queue it is the pool itself, which is the operator's."""

    subject: str  # in words: "job a", "segment a__seg_1", "policy horizon"
    job_id: str | None = None
    queue: QueueSpec | None = None
    submitted_by: str | None = None  # of a job that exists
    priority: int = 0  # that a job is to be submitted with, or to get
    registered: bool = False  # it is a version of a model, or its checkpoint


def check(caller: Caller, action: Action, about: About) -> None:
    """Raises `Forbidden`: who, what, what is allowed, whom to ask."""
    problem = None if caller.unrestricted else _problem(caller, action, about)
    if problem is not None:
        raise Forbidden(f"{caller.name!r} may not {action} {_on(about)}: {problem}")


def _problem(caller: Caller, action: Action, about: About) -> str | None:
    queue = about.queue
    if queue is None:
        if action is Action.REPLACE:
            return None  # a champion that no job of the ledger has made is nobody's
        return "that is for the operator (`elastic` at the host) and for administrators of Airflow"
    if _among(caller, queue.owners):
        return None
    is_open = not queue.owners and not queue.members
    if not is_open and not _among(caller, queue.members):
        return (
            f"the queue is of {_names(queue.owners + queue.members)}, and {caller.name!r} is {_groups(caller)}. "
            f"Ask {_whom(queue)}"
        )
    if action is Action.SUBMIT:
        return _priority_problem(queue, about.priority)
    if action is Action.SET and (problem := _priority_problem(queue, about.priority)):
        return problem
    if action in (Action.WARM_START, Action.REPLACE) and about.registered:
        return None  # a queue's models are its members'
    if is_open or (about.submitted_by is not None and about.submitted_by == caller.name):
        return None
    whose = f"{about.submitted_by!r} submitted it" if about.submitted_by else "nobody is known to have submitted it"
    return f"{whose}, and members act on their own jobs only. Ask {_whom(queue)}"


def _priority_problem(queue: QueueSpec, priority: int) -> str | None:
    if queue.max_priority is None or priority <= queue.max_priority:
        return None
    return (
        f"its priority is {priority}, and the queue takes at most {queue.max_priority} from others than its owners. "
        f"Take that, or ask {_whom(queue)}"
    )


def _among(caller: Caller, names: tuple[str, ...]) -> bool:
    return any(
        name.removeprefix(GROUP) in caller.groups if name.startswith(GROUP) else name == caller.name for name in names
    )


def _on(about: About) -> str:
    return about.subject if about.queue is None else f"{about.subject} of queue {about.queue.name!r}"


def _names(names: tuple[str, ...], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _groups(caller: Caller) -> str:
    return f"in {', '.join(sorted(caller.groups))}" if caller.groups else "in no group that is known"


def _whom(queue: QueueSpec) -> str:
    return f"its owners ({_names(queue.owners)})" if queue.owners else "the operator"


# Methods of the service that somebody may call: those that look, and those that ask `check` for each of their actions.
# All others change what only the platform may: segments, results, process groups, the sweep.
LOOKS = frozenset(
    [
        "submission",
        "nodes",
        "cluster",
        *(name for part in (JobRecords, DecisionControl) for name in vars(part) if not name.startswith("_")),
    ]
)
ACTS = frozenset({"start_job", "start_sweep", "fork_job", "check_submission", "submit", "check_attach", "cancel",
                  "cancel_jobs", "revive", "rollback", "revoke", "pause", "resume", "stop", "set_job",
                  "checkpoint_now", "set_policy", "set_cluster", "set_aside_node", "take_back_node", "promote",
                  "roll_back_model"})  # fmt: skip


def check_method(caller: Caller, name: str) -> None:
    """Raises `Forbidden` for a method that is the platform's own, and for who is not the operator `decide`."""
    if name in ACTS or (name in LOOKS and name != "decide"):
        return
    if not caller.unrestricted:
        raise Forbidden(f"{caller.name!r} may not call {name!r}: it is the platform's own. Users look, and act on jobs")
