"""Small searches, and every schedule that there is in one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from hypothesis import strategies as st

from elastic_core.policy.ones.genome import IDLE, Contender, Genome, Search, refresh


@st.composite
def searches(draw: st.DrawFn) -> Search:
    """Up to three jobs on up to four slots of one or two types and nodes."""
    kinds = draw(st.lists(st.integers(0, 1), min_size=1, max_size=4).map(sorted))
    node_of = tuple(2 * kind + (at % 2) for at, kind in enumerate(kinds))
    jobs = draw(st.lists(contenders(), min_size=1, max_size=3))
    return Search(tuple(jobs), tuple(kinds), node_of)


@st.composite
def contenders(draw: st.DrawFn) -> Contender:
    """A job that scales by a power of its slots, less over nodes, and whose halved batch costs it something."""
    counts = sorted(draw(st.sets(st.integers(1, 4), min_size=1, max_size=3)))
    most = draw(st.integers(1, len(counts)))
    work, power = draw(st.integers(1, 100)), draw(st.sampled_from([0.2, 0.6, 0.9]))
    types = draw(st.sampled_from([(0,), (1,), (0, 1)]))
    ladders = (tuple(counts[:most]), tuple(counts))
    utilities = {
        (kind, several, count, times): count * work * (1.0 + kind) * (1.2 if several else 1.0) * 1.1**times
        / count**power
        for kind in types
        for several in (False, True)
        for times, ladder in enumerate(ladders)
        for count in ladder
    }  # fmt: skip
    return Contender(frozenset(types), ladders, utilities)


def every_schedule(search: Search) -> Iterator[Genome]:
    """All genomes that some order of service leaves as they are."""
    genes = [IDLE, *((row, times) for row, job in enumerate(search.contenders) for times in range(len(job.ladders)))]
    orders = list(permutations(range(len(search.contenders))))
    for genome in product(genes, repeat=len(search.type_of)):
        if any(refresh(search, genome, order) == genome for order in orders):
            yield genome
