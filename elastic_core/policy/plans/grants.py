"""Which targets can come into force now: pure, from a picture of who holds and who asks.

Targets are what the plan wants, leases are what is; both are within capacity, so every step towards the targets is
safe. The rules:
1. A waiting job gets its whole target where that is free: on the nodes that the plan prefers, else on as few nodes as
   possible, its last slots first.
2. Where it is not, but slots that others are giving up make up for it, the job waits, for at most `grace_seconds`
   after they were asked: starting on one slot to be resized five seconds later helps nobody.
3. Else it takes the largest allowed count of what is free, never below its minimum. Nothing is held while waiting.
4. A running job that has to shrink is asked to reach a boundary at once, one that may grow only when the missing
   slots are free now. A job that is to keep what it has is no longer asked.
5. A running job that exchanges slots for as many of another type, or more, is asked as soon as those are free or are
   being given up: two jobs that exchange with each other would else wait for each other for ever.
6. A running job on nodes that are set aside counts as holding its other slots alone (`Holder.leaves`), and goes on
   there until what it misses is free elsewhere, or until the nodes are about to go: then it is asked at once
   (`Holder.leave_by`).
7. A running job whose target demands other nodes (`Target.migrate`) is asked in the same way, and waits for them, once
   it has stopped, as in rule 2 (`policy.plans.migration`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from elastic_core.domain import CPU, Allocation, Layout, Slot, Stages, Target
from elastic_core.policy.plans.migration import able_to_migrate, by_node, must_migrate, on_required_nodes, slots_left
from elastic_core.policy.plans.moves import Asker, Grant, Holder, Moves
from elastic_core.policy.plans.packing import SlotPool
from elastic_core.text import plural


def as_held(target: Target, held: Allocation) -> bool:
    """The target asks for what is held: as many slots of each type, in the same layout, roles and stages."""
    if target.num_slots != held.num_slots or target.layout != held.layout or target.roles != held.roles:
        return False
    if target.stages != held.stages:
        return False
    return target.wanted == held.counts() and on_required_nodes(target, held.slots)


def granted(target: Target, slots: tuple[Slot, ...]) -> Allocation:
    """What a job gets that is to have its whole target on these slots, by rank."""
    if target.stages:
        slots = _by_stage(slots, target.stages)
    elif target.layout.servers:
        slots = workers_first(slots)
    return Allocation(
        slots=slots, global_batch=target.global_batch,
        layout=target.layout, comm=target.comm, roles=target.roles, stages=target.stages,
        expected_comm=target.expected_comm,
    )  # fmt: skip


def workers_first(slots: Sequence[Slot]) -> tuple[Slot, ...]:
    """Of two types the CPU's last: parameter servers are the last ranks."""
    return tuple(sorted(slots, key=lambda slot: slot.type == CPU))  # stable


def _by_stage(slots: Sequence[Slot], stages: Stages) -> tuple[Slot, ...]:
    """In the order of the stages; the slots of a type go to its stages in turn."""
    left: dict[str, list[Slot]] = {}
    for slot in slots:
        left.setdefault(slot.type, []).append(slot)
    ordered: list[Slot] = []
    for stage in stages:
        ordered += left[stage.type][: stage.num_slots]
        del left[stage.type][: stage.num_slots]
    return tuple(ordered)


def usable(held: Allocation, leaves: Collection[str]) -> Allocation:
    """What is left of it without the slots on these nodes. Its stages are not cut: nothing goes on in place on them."""
    return replace(held, slots=tuple(slot for slot in held.slots if slot.node not in leaves)) if leaves else held


def in_place(target: Target, held: Allocation, free: Collection[Slot]) -> tuple[Slot, ...] | None:
    """The target's slots where processes on the `held` ones can go on there, sorted: as a grant would choose them.

    None where slots are missing, of another type, or none of the held ones stays. How many of each node they are is
    what counts: which of the held ones of a node stay, and as which rank, is for `state.reshard.rank_places` to say.
    Other stages are begun by new processes, and so are workers and servers on several types.
    """
    counts = target.wanted
    if target.stages or held.stages or len(counts) > 1 or len(held.counts()) > 1:
        return None
    reach = SlotPool({*free, *held.slots})
    if counts.keys() != held.counts().keys() or not reach.covers(counts):
        return None
    chosen = reach.choose(counts, held.slots, target.nodes)
    if set(chosen).isdisjoint(held.slots) or not on_required_nodes(target, chosen):
        return None
    return chosen


def plan_moves(
    now: float,
    grace_seconds: float,
    free: SlotPool | Iterable[Slot],
    holders: Sequence[Holder],
    askers: Sequence[Asker],
    targets: Mapping[str, Target],
) -> Moves:
    """The next moves towards the targets, which fit the capacity together; `askers` in the order they are served. What
    is granted is taken from a pool.

    The caller makes them come true and asks again, with the picture as it is then. Where processes end at once,
    `grace_seconds` may be infinite: then the moves lead to every target.
    """
    moves = Moves()
    remaining = _pool(free)
    unserved = [asker for asker in askers if not _grant_whole(asker, remaining, targets, moves)]
    asking = {asker.job_id for asker in askers}
    given_up = {holder.segment_id: _slots_given_up(holder, targets.get(holder.job_id), holder.job_id in asking)
             for holder in holders}  # fmt: skip
    exchanging = _segments_that_exchange(holders, targets, remaining, given_up)
    migrating = able_to_migrate(holders, targets, remaining)
    _wait_or_grant_part(now, grace_seconds, remaining, holders, given_up, unserved, targets, moves)
    for holder in holders:
        target = targets.get(holder.job_id)
        if target is not None and holder.open:
            if must_migrate(target, holder.allocation):
                _migrate(holder, target, moves, able=holder.segment_id in migrating)
            else:
                _resize(holder, target, remaining, moves, exchanges=holder.segment_id in exchanging)
        _leave_in_time(holder, now, moves)
    return moves


def _pool(free: SlotPool | Iterable[Slot]) -> SlotPool:
    return free if isinstance(free, SlotPool) else SlotPool(free)


def is_settled(holder: Holder, target: Target | None) -> bool:
    """It has what it shall have, and goes on: `plan_moves` answers the same without it, whoever else holds or asks."""
    unmoved = holder.open and holder.ending_since is None and not holder.draining and not holder.leaves
    return unmoved and target is not None and as_held(target, holder.allocation)


def grants_to_returning(
    free: SlotPool | Iterable[Slot], askers: Sequence[Asker], targets: Mapping[str, Target]
) -> Moves:
    """Of jobs that lost an attempt: each gets its whole target, else the largest allowed count of what is free.

    Nobody waits here for what others give up (rule 2): who grows later does so in its processes, who waits has none.
    Who gets nothing, since its target is nothing or not enough is free, is not in the answer.
    """
    moves, remaining = Moves(), _pool(free)
    for asker in askers:
        if not _grant_whole(asker, remaining, targets, moves):
            _grant_part(asker, targets[asker.job_id], remaining, moves)
    return replace(moves, waits={})


def _migrate(holder: Holder, target: Target, moves: Moves, *, able: bool) -> None:
    nodes = ", ".join(f"{count} on {node}" for node, count in sorted((target.nodes or {}).items()))
    if able and holder.revoked_by is None:
        moves.revocations[holder.segment_id] = f"to other nodes, {nodes}: {target.reason}"
    elif holder.revoked_by is None:
        moves.waits[holder.job_id] = f"keeps its nodes until there are slots to move to: {nodes}"


def _segments_that_exchange(
    holders: Sequence[Holder], targets: Mapping[str, Target], remaining: SlotPool, given_up: dict[str, Counter[str]]
) -> set[str]:
    """Segments that can exchange slots now: what each misses is free or given up, also by others that exchange.

    Who cannot gives nothing up but what is draining already: said in `given_up`.
    """
    draining: dict[str, Counter[str]] = {}  # of those in `missing`
    missing: dict[str, Counter[str]] = {}
    for holder in holders:
        target = targets.get(holder.job_id)
        if target is not None and holder.open and holder.revoked_by is None:
            held, wanted = Counter(holder.allocation.counts()), Counter(target.wanted)
            if len(held | wanted) > 1 and held - wanted and wanted - held and wanted.total() >= held.total():
                missing[holder.segment_id] = wanted - held
                draining[holder.segment_id] = Counter(slot.type for slot in holder.draining)
    while missing:
        pool = remaining.counts.copy()
        for counts in given_up.values():
            pool += counts
        stuck = [segment_id for segment_id, counts in missing.items() if not counts <= pool]
        if not stuck:
            break
        for segment_id in stuck:
            del missing[segment_id]
            given_up[segment_id] = draining[segment_id]
    return set(missing)


def _grant_whole(asker: Asker, remaining: SlotPool, targets: Mapping[str, Target], moves: Moves) -> bool:
    target = targets.get(asker.job_id)
    if target is None or not target.num_slots:
        return True  # nothing to give; the target's reason says why
    if not remaining.covers(target.counts) or not _nodes_are_free(target, remaining):
        return False
    _grant(asker, target, dict(target.counts), target.layout, target.reason, remaining, moves)
    return True


def _nodes_are_free(target: Target, remaining: SlotPool) -> bool:
    return not target.migrate or Counter(target.nodes or {}) <= remaining.by_node()


def _grant(
    asker: Asker, target: Target, counts: Mapping[str, int], layout: Layout, reason: str, remaining: SlotPool,
    moves: Moves,
) -> None:  # fmt: skip
    slots = remaining.choose(counts, [slot for slot in asker.last_slots if slot in remaining], target.nodes)
    remaining.take(slots)
    allocation = replace(granted(target, slots), layout=layout)
    moves.grants.append(Grant(asker, allocation, reason))


def _wait_or_grant_part(
    now: float, grace_seconds: float, remaining: SlotPool, holders: Sequence[Holder],
    given_up: Mapping[str, Counter[str]], unserved: Sequence[Asker], targets: Mapping[str, Target], moves: Moves,
) -> None:  # fmt: skip
    """Rules 2 and 3, for the askers whose whole target is not free."""
    if not unserved:
        return
    coming: Counter[str] = Counter()
    nodes_to_come = remaining.by_node()
    waited_for: dict[str, float] = {}  # job_id -> until when it is waited for
    for holder in holders:
        counts = given_up.get(holder.segment_id)
        since = holder.draining_since if holder.ending_since is None else holder.ending_since
        until = (now if since is None else since) + grace_seconds
        if counts and until > now:
            coming += counts
            nodes_to_come += by_node((*holder.allocation.slots, *holder.draining))
            waited_for[holder.job_id] = until
    pool = remaining.counts + coming
    for asker in unserved:
        target = targets[asker.job_id]
        wanted = Counter(dict(target.counts))
        nodes_will_do = not target.migrate or Counter(target.nodes or {}) <= nodes_to_come
        if waited_for and wanted <= pool and (nodes_will_do or not remaining.covers(target.counts)):
            pool -= wanted
            names = ", ".join(sorted("its own last processes" if j == asker.job_id else j for j in waited_for))
            moves.waits[asker.job_id] = f"waits for slots that are being given up by {names}"
            moves.check_at = min([*waited_for.values(), *([moves.check_at] if moves.check_at else [])])
        elif remaining.covers(target.counts):  # not on the nodes that it was to move to, and they are not to come
            _grant(asker, target, dict(target.counts), target.layout, target.reason, remaining, moves)
        else:
            _grant_part(asker, target, remaining, moves)


def _slots_given_up(holder: Holder, target: Target | None, asks: bool) -> Counter[str]:
    """Slots that will be free in a moment: what a job holds above its target, once its processes have stopped.

    A job whose next segment asks already gets its target as an asker; one that has yet to ask will take it back. One
    without a target is asked for nothing, so that it gives up what it holds where it ends by itself alone.
    """
    held, draining = Counter(holder.allocation.counts()), Counter(slot.type for slot in holder.draining)
    if asks:
        return draining + (held if not holder.open else Counter())
    wanted = dict(target.counts) if target is not None else {}
    above = Counter() if held == wanted else held - Counter(wanted)
    if target is not None and holder.ending_since is not None and must_migrate(target, holder.allocation):
        above = Counter(slot.type for slot in slots_left(target, holder.allocation))
    # More than its target: revoked in this very round of moves.
    stops = holder.ending_since is not None or (target is not None and bool(above))
    return draining + (above if stops else Counter())


def _grant_part(asker: Asker, target: Target, remaining: SlotPool, moves: Moves) -> None:
    available = remaining.counts
    if target.stages or (target.layout.servers and len(target.wanted) > 1):  # no other bundle is known here
        needs = ", ".join(f"{count} {kind} ({available[kind]} free)" for kind, count in sorted(target.wanted.items()))
        moves.waits[asker.job_id] = f"waits for all of its slots at once: {needs}"
        return
    usable = {kind: min(count, available[kind]) for kind, count in target.counts.items()}
    layouts = {n: _closest(asker.limits.layouts(n), target.layout) for n in asker.limits.slot_counts}
    fitting = [n for n in asker.limits.slot_counts
               if n <= sum(usable.values()) and n <= target.global_batch and layouts[n] is not None]  # fmt: skip
    if not fitting:
        need, free = asker.limits.min_slots, sum(usable.values())
        are = "is" if free == 1 else "are"
        moves.waits[asker.job_id] = (
            f"waits: {plural(free, 'slot')} {are} free of the {target.num_slots} that it shall get, "
            f"at least {need} are needed"
        )
        return
    count = fitting[-1]
    counts: dict[str, int] = {}
    for kind, most in usable.items():
        counts[kind] = min(most, count - sum(counts.values()))
    layout = layouts[count]
    assert layout is not None
    reason = f"{count} of {target.num_slots} slots, the others are not free; {target.reason}"
    _grant(asker, target, {kind: n for kind, n in counts.items() if n}, layout, reason, remaining, moves)


def _closest(layouts: Sequence[Layout], wanted: Layout) -> Layout | None:
    """The same cut of the model over fewer replicas where that is admitted; no other cut: the plan chose this one. With
    servers as many as wanted, or as close to it as there are."""
    same = [layout for layout in layouts if (layout.tensor, layout.pipeline) == (wanted.tensor, wanted.pipeline)]
    if any(layout.servers for layout in same):
        return min(same, key=lambda one: ((one.servers > 0) != (wanted.servers > 0), abs(one.servers - wanted.servers)))
    return next((layout for layout in same if layout.sharded == wanted.sharded), same[0] if same else None)


def _resize(holder: Holder, target: Target, remaining: SlotPool, moves: Moves, *, exchanges: bool) -> None:
    held = Counter(holder.allocation.counts())
    wanted = Counter(target.wanted)
    if as_held(target, holder.allocation):
        if holder.revoked_by == "plan":
            moves.withdrawals.append(holder.segment_id)
        return
    if holder.revoked_by is not None:
        return
    if wanted == held and not holder.leaves:
        moves.revocations[holder.segment_id] = f"{_other_layout(holder.allocation, target)}: {target.reason}"
        return
    missing = wanted - held
    fits = remaining.covers(missing)
    if missing and fits:
        remaining.take(remaining.choose(missing))  # two jobs do not both grow into the same slot
    if fits or exchanges or wanted.total() < held.total():
        away = f"leaves {', '.join(holder.leaves)}, set aside; " if holder.leaves else ""
        resize = f"resize {held.total()} -> {wanted.total()} slots" if not away else f"{wanted.total()} slots elsewhere"
        moves.revocations[holder.segment_id] = f"{away}{resize}: {target.reason}"
    elif holder.leaves:
        nodes = ", ".join(holder.leaves)
        goes = "" if holder.leave_by is None else ", or until it is about to go"
        free = f"until {missing.total()} slots are free elsewhere"
        moves.waits[holder.job_id] = f"stays on {nodes}, set aside, {free}{goes}"
    else:
        moves.waits[holder.job_id] = f"keeps {plural(held.total(), 'slot')} until {missing.total()} more are free"


def _leave_in_time(holder: Holder, now: float, moves: Moves) -> None:
    """Rule 6, where the nodes go: also of a job that no plan is about."""
    asked = holder.revoked_by is not None or holder.segment_id in moves.revocations
    if holder.leave_by is None or asked or not holder.open:
        return
    if now < holder.leave_by:
        moves.check_at = holder.leave_by if moves.check_at is None else min(moves.check_at, holder.leave_by)
        return
    moves.waits.pop(holder.job_id, None)
    moves.revocations[holder.segment_id] = f"leaves {', '.join(holder.leaves)} before it goes"


def _other_layout(held: Allocation, target: Target) -> str:
    if target.stages != held.stages:
        return f"other stages, {'; '.join(map(str, held.stages))} -> {'; '.join(map(str, target.stages))}"
    return f"another layout, {held.layout} -> {target.layout}"
