"""The plan of a reshard: which piece of which tensor goes from where to which ranks. Every rank computes the same one.

Ranks of the new layout go to devices by `state.reshard.assignment`. Each cell of the state that a rank is missing comes
from its own host's memory, else from the least loaded replica on another host, else from the store. What several ranks
of a host miss is fetched once, by one of them; what several hosts miss of the store is read once and passed on
(`relay`). So the bytes that move are the lower bound of the rank map: by device, by host and from the store.
`plan_load` is the plan of ranks whose places are given, a restore's: what no memory holds each host reads for itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.errors import UserError
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import itemsize
from elastic_core.state.layout.layout import StateLayout, TensorMeta, partition
from elastic_core.state.layout.overlap import Cell, HeldBoxes, WantedBoxes, cells_of, members, needs_of
from elastic_core.state.reshard.assignment import Moved, RankMap, best_map, moved_by
from elastic_core.state.reshard.pieces import Link, Piece, merged

Tiles = Mapping[str, Sequence[Box]]  # how tensors are tiled in the store, where a part of a tile costs the whole tile
Runs = Mapping[tuple[str, Box], int]  # tiles that lie side by side there, by number: one rank of a host reads a run


@dataclass(frozen=True, slots=True)
class Plan:
    """`target` is the new layout on the slots of the map; `bound` is what that map cannot avoid moving."""

    target: StateLayout
    pieces: tuple[Piece, ...]
    bound: Moved
    proven: bool  # no map of these ranks to these slots moves less
    released: tuple[Slot, ...]  # slots of the old layout that the new one does not use

    def pieces_of(self, rank: int) -> Iterator[Piece]:
        """What a rank fetches."""
        return (piece for piece in self.pieces if piece.fetcher == rank)

    @property
    def num_bytes(self) -> dict[Link, int]:
        """Bytes by link. What a host's ranks share after one fetched it counts as moved within the host."""
        total = dict.fromkeys(Link, 0)
        for piece in self.pieces:
            total[piece.link] += piece.num_bytes
            total[Link.HOST] += piece.num_bytes * (len(piece.targets) - 1)
        return total

    @property
    def moved(self) -> Moved:
        """What the pieces move, in the terms of the bound."""
        by_link = self.num_bytes
        into_hosts = by_link[Link.NETWORK] + by_link[Link.STORE]
        return Moved(into_hosts, into_hosts + by_link[Link.HOST], by_link[Link.STORE])


def holdings(
    layout: StateLayout, metas: Mapping[str, TensorMeta], lost: Collection[Slot] = ()
) -> dict[Slot, HeldBoxes]:
    """What the surviving devices of a layout hold."""
    return {
        slot: {name: (box,) for name, box in boxes.items()}
        for slot, boxes in zip(layout.slots, partition(layout, metas), strict=True)
        if slot not in lost
    }


def plan_change(
    metas: Mapping[str, TensorMeta],
    held: Mapping[Slot, HeldBoxes],
    target: StateLayout,
    *,
    candidates: Sequence[Slot] | None = None,
    tiles: Tiles | None = None,
    keep_map: bool = False,
) -> Plan:
    """From what devices hold to a layout on the best of the candidates (by default the slots that it names).

    With `keep_map`, rank r runs on candidate r whatever that moves. `metas` are the tensors of concern, each placed by
    the target. Raises `UserError` for too few candidates.
    """
    places = list(dict.fromkeys(target.slots if candidates is None else candidates))
    devices = [*places, *sorted(set(held) - set(places))]
    contents = [held.get(slot, {}) for slot in devices]
    wanted = partition(target, metas)
    hosts = [slot.node for slot in devices]
    needs = needs_of(metas, contents, wanted)
    if keep_map:
        if len(places) < target.world:
            raise UserError(f"{target.world} ranks do not fit {len(places)} devices.")
        chosen = RankMap(tuple(range(target.world)), moved_by(needs, hosts, range(target.world)), False)
    else:
        chosen = best_map(needs, hosts, range(len(places)), target.world)
    routing = _Routing(metas, devices, chosen.devices)
    for name, cells in cells_of(metas, contents, wanted):
        routing.add(name, cells, (tiles or {}).get(name))
    used = {devices[d] for d in chosen.devices}
    return Plan(
        replace(target, slots=tuple(devices[d] for d in chosen.devices)),
        routing.pieces(),
        chosen.moved,
        chosen.proven,
        tuple(sorted(set(held) - used)),
    )


def plan_load(
    metas: Mapping[str, TensorMeta],
    held: Mapping[Slot, HeldBoxes],
    wanted: Sequence[WantedBoxes],
    slots: Sequence[Slot],
    tiles: Tiles,
    runs: Runs,
) -> tuple[Piece, ...]:
    """From what devices hold, and else the store, to ranks on slots, by rank what each wants."""
    devices = [*slots, *sorted(set(held) - set(slots))]
    routing = _Routing(metas, devices, range(len(slots)), runs, relays=False)
    for name, cells in cells_of(metas, [held.get(slot, {}) for slot in devices], wanted):
        routing.add(name, cells, tiles[name])
    return routing.pieces()


@dataclass(frozen=True, slots=True)
class _MissingCells:
    """Cells of tensors to route together: one, or those of one tile or run of tiles of the store."""

    num_bytes: int
    cells: tuple[tuple[str, Cell], ...]

    @property
    def order(self) -> tuple[int, str, tuple[int, ...]]:
        tensor, cell = self.cells[0]
        return (-self.num_bytes, tensor, cell.box.start)


class _Routing:
    """Chooses sources and fetchers, the largest cells first, each time the least loaded one.

    Without `relays` each host reads for itself what it lacks of the store.
    """

    def __init__(
        self,
        metas: Mapping[str, TensorMeta],
        devices: Sequence[Slot],
        rank_map: Sequence[int],
        runs: Runs | None = None,
        relays: bool = True,
    ) -> None:
        self._metas = metas
        self._devices = devices
        self._device_of = rank_map
        self._runs = runs or {}
        self._relays = relays
        self._held: list[tuple[str, Cell]] = []
        self._stored: dict[object, list[tuple[str, Cell]]] = defaultdict(list)  # by run, or tile
        self._pieces: list[Piece] = []
        self._sent: dict[Slot, int] = defaultdict(int)
        self._sent_by_host: dict[str, int] = defaultdict(int)
        self._fetched: dict[int, int] = defaultdict(int)
        self._read_by_host: dict[str, int] = defaultdict(int)
        self._hosts_of: dict[int, dict[str, tuple[int, ...]]] = {}

    def add(self, name: str, cells: Sequence[Cell], tiles: Sequence[Box] | None) -> None:
        unheld = [cell for cell in cells if not cell.holders]
        self._held += [(name, cell) for cell in cells if cell.holders]
        for tile in tiles if tiles is not None else [cell.box for cell in unheld]:
            parts = [Cell(part, 0, cell.needers) for cell in unheld if (part := cell.box.intersect(tile)) is not None]
            if parts:
                self._stored[self._runs.get((name, tile), (name, tile))] += [(name, part) for part in parts]

    def pieces(self) -> tuple[Piece, ...]:
        groups = [*([held] for held in self._held), *self._stored.values()]
        missing = [_MissingCells(sum(self._size(*cell) for cell in group), tuple(group)) for group in groups]
        for cells in sorted(missing, key=lambda cells: cells.order):
            tensor, cell = cells.cells[0]
            if cell.holders:
                self._from_memory(tensor, cell)
            else:
                self._from_store(cells)
        pieces = tuple(merged(self._pieces))
        crash_here("plan.made")
        return pieces

    def _from_memory(self, tensor: str, cell: Cell) -> None:
        holders = [self._devices[d] for d in members(cell.holders)]
        for host, ranks in self._by_host(cell.needers).items():
            near = [slot for slot in holders if slot.node == host]
            lacking = [rank for rank in ranks if self._slot(rank) not in holders]
            for rank in (rank for rank in ranks if rank not in lacking):
                self._take(tensor, cell.box, Link.LOCAL, self._slot(rank), rank, (rank,))
            if near:
                for rank in lacking:
                    self._take(tensor, cell.box, Link.HOST, self._least(near), rank, (rank,))
            else:
                self._take(tensor, cell.box, Link.NETWORK, self._least(holders), self._idle(ranks), ranks)

    def _from_store(self, missing: _MissingCells) -> None:
        """One host reads a cell and the others that need it get it from there; one rank reads for its host."""
        needed: dict[str, int] = defaultdict(int)
        for tensor, cell in missing.cells:
            for host in self._by_host(cell.needers):
                needed[host] += self._size(tensor, cell)
        order = sorted(needed, key=lambda host: (-needed[host], self._read_by_host[host], host))
        reads: dict[str, list[tuple[str, Cell]]] = defaultdict(list)
        for tensor, cell in missing.cells:
            hosts = [host for host in order if host in self._by_host(cell.needers)]
            for host in hosts[:1] if self._relays else hosts:
                reads[host].append((tensor, cell))
        for host, cells in reads.items():
            reader = self._reader(host, cells)
            for tensor, cell in cells:
                self._read_by_host[host] += self._size(tensor, cell)
                self._read(tensor, cell, host, reader)

    def _reader(self, host: str, cells: Sequence[tuple[str, Cell]]) -> int:
        """The least loaded of those who need much of it: what a rank reads for others alone is copied once more."""
        needed: dict[int, int] = defaultdict(int)
        for tensor, cell in cells:
            for rank in self._by_host(cell.needers)[host]:
                needed[rank] += self._size(tensor, cell)
        most = max(needed.values())
        return self._idle([rank for rank in sorted(needed) if 2 * needed[rank] >= most])

    def _read(self, tensor: str, cell: Cell, host: str, reader: int) -> None:
        ranks_of = self._by_host(cell.needers)
        targets = ranks_of[host]
        self._take(tensor, cell.box, Link.STORE, None, reader, targets)
        for other, ranks in ranks_of.items() if self._relays else ():
            if other != host:
                source = self._slot(targets[0])
                self._take(tensor, cell.box, Link.NETWORK, source, self._idle(ranks), ranks, relay=True)

    def _take(
        self,
        tensor: str,
        box: Box,
        link: Link,
        source: Slot | None,
        fetcher: int,
        targets: tuple[int, ...],
        relay: bool = False,
    ) -> None:
        num_bytes = box.volume * itemsize(self._metas[tensor].dtype)
        if link is not Link.LOCAL:
            self._fetched[fetcher] += num_bytes
        if source is not None and link is not Link.LOCAL:
            self._sent[source] += num_bytes
            self._sent_by_host[source.node] += num_bytes
        self._pieces.append(Piece(tensor, box, num_bytes, link, source, fetcher, targets, relay))

    def _by_host(self, needers: int) -> Mapping[str, tuple[int, ...]]:
        if needers not in self._hosts_of:
            ranks_of_host: dict[str, tuple[int, ...]] = {}
            for rank in members(needers):
                node = self._slot(rank).node
                ranks_of_host[node] = (*ranks_of_host.get(node, ()), rank)
            self._hosts_of[needers] = ranks_of_host
        return self._hosts_of[needers]

    def _size(self, tensor: str, cell: Cell) -> int:
        return cell.box.volume * itemsize(self._metas[tensor].dtype)

    def _slot(self, rank: int) -> Slot:
        return self._devices[self._device_of[rank]]

    def _least(self, slots: Sequence[Slot]) -> Slot:
        return min(slots, key=lambda slot: (self._sent_by_host[slot.node], self._sent[slot], slot))

    def _idle(self, ranks: Sequence[int]) -> int:
        return min(ranks, key=lambda rank: (self._fetched[rank], rank))
