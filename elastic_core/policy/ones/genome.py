"""A schedule as ONES writes it: every slot has a job with a local batch, or nobody (Bian et al., SC 2021, section 3.2).

A local batch is the job's own, halved so many times. `refresh` makes any genome a schedule that the pool can carry out:
a job has slots of one type, an admitted count of them inside its batch limit, one local batch for all of them; and no
slot idles that a job could use. First waiting jobs start on idle slots, then those that run grow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log2

NOBODY = -1
Gene = tuple[int, int]  # (row of the job, or NOBODY; how often its local batch is halved)
Genome = tuple[Gene, ...]  # by slot
IDLE: Gene = (NOBODY, 0)
Shape = tuple[int, bool, int, int]  # (type, whether on several nodes, slots, halvings)


@dataclass(frozen=True)
class Contender:
    """A job in the search. `ladders[h]`: the counts that its batch limit admits with its local batch halved h times,
    ascending; none is empty. `utilities`: slot-seconds that it would still take by shape, inf where it cannot run."""

    types: frozenset[int]
    ladders: tuple[tuple[int, ...], ...]
    utilities: Mapping[Shape, float]

    @property
    def smallest(self) -> int:
        return self.ladders[0][0]

    def most(self, count: int, halvings: int) -> int:
        """The largest count of the ladder that is at most so much; 0 where there is none."""
        return max((step for step in self.ladders[halvings] if step <= count), default=0)


@dataclass(frozen=True)
class Search:
    """What is searched: contenders in the order of the queue, and slots with their type and node."""

    contenders: tuple[Contender, ...]
    type_of: tuple[int, ...]
    node_of: tuple[int, ...]

    @cached_property
    def slots_of_type(self) -> tuple[tuple[int, ...], ...]:
        kinds = range(max(self.type_of, default=-1) + 1)
        return tuple(tuple(at for at, kind in enumerate(self.type_of) if kind == wanted) for wanted in kinds)

    def utility(self, genome: Genome) -> float:
        """The fitness, to be made small: remaining slot-seconds of all jobs that run (SRUF, section 3.2.3)."""
        shapes = ((row, self.shape(slots, genome)) for row, slots in slots_by_job(genome).items())
        return sum(self.contenders[row].utilities[shape] for row, shape in shapes)

    def shape(self, slots: Sequence[int], genome: Genome) -> Shape:
        """Of a job that holds these slots of a refreshed genome."""
        first, several = slots[0], any(self.node_of[at] != self.node_of[slots[0]] for at in slots)
        return (self.type_of[first], several, len(slots), genome[first][1])


def slots_by_job(genome: Genome) -> dict[int, list[int]]:
    """By row of the job, in the order of the slots."""
    held: dict[int, list[int]] = defaultdict(list)
    for at, (row, _) in enumerate(genome):
        if row != NOBODY:
            held[row].append(at)
    return dict(held)


def refresh(search: Search, genome: Genome, order: Sequence[int]) -> Genome:
    """The schedule that is next to the genome. `order`: rows of the jobs, first who is served first by idle slots."""
    genes = list(genome)
    halvings: dict[int, int] = {}
    held: dict[int, list[int]] = {}
    for row, slots in slots_by_job(genome).items():
        valid, halved = _valid(search, search.contenders[row], slots, genome)
        for at in slots:
            genes[at] = IDLE
        if valid:
            held[row], halvings[row] = valid, halved
    idle = set(range(len(genes))).difference(*held.values())
    for row in order:
        if row not in held and (slots := _start(search, search.contenders[row], idle)):
            held[row], halvings[row] = slots, 0
            idle.difference_update(slots)
    for row in order:
        if row in held and idle:
            _grow(search, search.contenders[row], held[row], halvings[row], idle)
    for row, slots in held.items():
        for at in slots:
            genes[at] = (row, halvings[row])
    return tuple(genes)


def _valid(search: Search, contender: Contender, slots: Sequence[int], genome: Genome) -> tuple[list[int], int]:
    """The slots of its commonest type, as many as its ladder has; its local batch is the mean of its genes'."""
    kinds = Counter(search.type_of[at] for at in slots if search.type_of[at] in contender.types)
    if not kinds:
        return [], 0
    kind = max(sorted(kinds), key=lambda kind: kinds[kind])
    own = [at for at in slots if search.type_of[at] == kind]
    mean = sum(2.0 ** -genome[at][1] for at in own) / len(own)
    halved = min(round(-log2(mean)), len(contender.ladders) - 1)
    count = contender.most(len(own), halved)
    if count < len(own):
        on_node = Counter(search.node_of[at] for at in own)
        own = sorted(own, key=lambda at: (-on_node[search.node_of[at]], at))[:count]
    return own, halved


def _start(search: Search, contender: Contender, idle: set[int]) -> list[int]:
    """Its smallest count on the type with most idle slots; nothing where none has as many."""
    if len(idle) < contender.smallest:
        return []
    room = Counter(search.type_of[at] for at in idle if search.type_of[at] in contender.types)
    kind = max(sorted(room), key=lambda kind: room[kind], default=NOBODY)
    if room[kind] < contender.smallest:
        return []
    return _choose(search, kind, contender.smallest, idle, ())


def _grow(search: Search, contender: Contender, held: list[int], halvings: int, idle: set[int]) -> None:
    """Up its ladder as far as idle slots of its type go; both collections are changed."""
    kind = search.type_of[held[0]]
    room = sum(1 for at in idle if search.type_of[at] == kind)
    count = contender.most(len(held) + room, halvings)
    if count > len(held):
        slots = _choose(search, kind, count - len(held), idle, held)
        held.extend(slots)
        idle.difference_update(slots)


def _choose(search: Search, kind: int, count: int, idle: set[int], beside: Sequence[int]) -> list[int]:
    """Idle slots on the job's own nodes first, then on those with most of them."""
    own = Counter(search.node_of[at] for at in beside)
    free = [at for at in search.slots_of_type[kind] if at in idle]
    on_node = Counter(search.node_of[at] for at in free)
    free.sort(key=lambda at: (-own[search.node_of[at]], -on_node[search.node_of[at]], search.node_of[at], at))
    return free[:count]
