"""Which server keeps which part of which parameter: the same on every rank, from shapes alone.

A large parameter is cut by rows over all servers, as even as rows are; any other is kept whole by the server that has
the least so far, the largest first (greedy, as Li et al. 2014 share keys by ranges and TensorFlow's parameter servers
whole variables by load). Only an optimizer that treats each element by itself steps rows as it steps the whole: under
any other no parameter is cut, so that what is trained is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from torch.optim import Optimizer

from elastic_core.state.layout.layout import DATA, Placement, Split
from elastic_core.state.order.sample_order import rank_share

LEAST_CUT = 4096  # elements of a parameter that is cut
_ELEMENTWISE = frozenset({
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD",
})  # fmt: skip

Rows = tuple[int, ...]
"""Of one parameter: how many rows each server keeps, in order; of a scalar, which has none, 1 where it is kept."""


def rows_by_server(shapes: Mapping[str, tuple[int, ...]], servers: int, *, cuts: bool) -> dict[str, Rows]:
    """Of every parameter, by name. `cuts`: whether parameters may be cut at all."""
    load = [0] * servers
    shares: dict[str, Rows] = {}
    whole = []
    for name, shape in shapes.items():
        size = prod(shape)
        if cuts and shape and size >= LEAST_CUT and shape[0] >= servers:
            shares[name] = tuple(rank_share(shape[0], server, servers)[1] for server in range(servers))
            load = [held + rows * (size // shape[0]) for held, rows in zip(load, shares[name], strict=True)]
        else:
            whole.append((-size, name))
    for size, name in sorted(whole):
        keeper = load.index(min(load))
        load[keeper] -= size
        rows = shapes[name][0] if shapes[name] else 1
        shares[name] = tuple(rows if server == keeper else 0 for server in range(servers))
    return {name: shares[name] for name in shapes}


def may_be_cut(optimizer: Optimizer) -> bool:
    """Whether this optimizer steps each element by itself, as far as is known of it: torch's own that do."""
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim") and kind.__name__ in _ELEMENTWISE


def placement_of_rows(rows: Rows, shape: tuple[int, ...], workers: int) -> Placement:
    """On the one axis of workers and servers that the layout has."""
    holders = holders_of(rows, workers)
    if not shape or len(holders) == 1:
        return Placement((), {DATA: holders})
    return Placement((Split(DATA, 0, (0,) * workers + rows),))


def holders_of(rows: Rows, workers: int) -> tuple[int, ...]:
    """The ranks that keep a part; of a parameter without elements the first server."""
    return tuple(workers + server for server, count in enumerate(rows) if count) or (workers,)
