"""`elastic checkpoint plan A B`: what a change of layout would move; `reshard`: a checkpoint as ranks of B write it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastic_core.commands.opening import Store, open_checkpoint
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import Slot, to_json
from elastic_core.errors import UserError
from elastic_core.settings import Settings
from elastic_core.state.layout.resizing import parse_sizes
from elastic_core.state.stores.store_urls import open_store
from elastic_core.text import size_text

if TYPE_CHECKING:  # torch takes seconds to import: each command brings it when it needs it
    from elastic_core.state.format.manifest import Manifest
    from elastic_core.state.layout.layout import StateLayout
    from elastic_core.state.reshard.change_plan import Plan

_out = Words(highlight=False, soft_wrap=True)

To = Annotated[
    str, typer.Argument(metavar="B", help="new layout: data=2,tensor=4 or a JSON file or a checkpoint that has it")
]
Slots = Annotated[
    str, typer.Option(help="slots that the new layout may use, as node:count,node:count; by default those of A")
]


def plan(
    a: Annotated[str, typer.Argument(metavar="A", help="checkpoint whose ranks still hold their state")],
    b: To,
    slots: Slots = "",
    lost: Annotated[list[str] | None, typer.Option(help="a slot whose memory is gone, as node/index")] = None,
    from_store: Annotated[bool, typer.Option(help="no process of A lives: all comes from the store")] = False,
    keep_map: Annotated[bool, typer.Option(help="rank r on the r-th slot, whatever that moves")] = False,
    store: Store = "",
    as_json: Json = False,
) -> None:
    """What a change of layout would move: bytes by link, the lower bound, which rank goes where.

    By default the new layout takes slots of A, or those that a file or checkpoint B names.
    """
    from elastic_core.state.reshard.change_plan import holdings, plan_change

    _, manifest = open_checkpoint(a, store, "")
    before = _layout_of(manifest)
    gone = {_slot(text, before) for text in lost or ()}
    candidates = _slots(slots) or tuple(sorted(set(before.slots) - gone))
    after = _target(b, before, candidates, store)
    if not slots and parse_sizes(b) is None:
        candidates = after.slots
    metas = {name: meta for name, meta in manifest.metas.items() if name in after.placements}
    held = {} if from_store else holdings(before, {n: m for n, m in metas.items() if n in before.placements}, gone)
    tiles = {name: [tile.box for tile in manifest.tensors[name].tiles] for name in metas}
    change = plan_change(metas, held, after, candidates=candidates, tiles=tiles, keep_map=keep_map)
    if as_json:
        print_json(_plan_json(change))
    else:
        _print_plan(change)


def reshard(
    uri: str,
    b: To,
    out: Annotated[str, typer.Option(help="folder or s3://bucket/prefix to write below")],
    store: Store = "",
    as_json: Json = False,
) -> None:
    """Write a checkpoint anew, as the ranks of another layout would have written it; every tensor bit for bit."""
    from elastic_core.state.format.inspecting import reshard as reshard_checkpoint

    place, manifest = open_checkpoint(uri, store, "")
    before = _layout_of(manifest)
    world = math.prod(
        {**dict(zip(before.mesh.axes, before.mesh.sizes, strict=True)), **(parse_sizes(b) or {})}.values()
    )
    after = _target(b, before, tuple(Slot("local", index, "cpu") for index in range(world)), store)
    written = reshard_checkpoint(place, manifest, after, open_store(out, endpoint=Settings().s3_endpoint))
    if as_json:
        print_json({"uri": manifest.uri, "out": out, **to_json(written)})
    else:
        _out.print(f"{size_text(written.size_bytes)} in {out}/{manifest.uri}, manifest {written.sha256}", markup=False)


def _layout_of(manifest: Manifest) -> StateLayout:
    from elastic_core.state.layout.resizing import replicated_layout

    return manifest.layout or replicated_layout(manifest.header.layout, manifest.metas)


def _target(text: str, before: StateLayout, slots: tuple[Slot, ...], store: str) -> StateLayout:
    from elastic_core.state.layout.layout import layout_from_json
    from elastic_core.state.layout.resizing import resized

    sizes = parse_sizes(text)
    if sizes is not None:
        return resized(before, sizes, slots)
    if text.endswith(".json"):
        try:
            return layout_from_json(json.loads(Path(text).read_text()))
        except (OSError, ValueError) as error:
            raise UserError(f"{text} cannot be read as a layout: {error}") from error
    if "=" in text and "/" not in text:
        raise UserError(f"{text!r} is no layout: write axes and their ranks, at least 1 each, as data=2,tensor=4.")
    return _layout_of(open_checkpoint(text, store, "")[1])


def _slots(text: str) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    for part in filter(None, text.split(",")):
        node, _, count = part.rpartition(":")
        if not node or not count.isdigit():
            raise UserError(f"{part!r} is not node:count, such as node-1:4.")
        slots.extend(Slot(node, index, "cpu") for index in range(int(count)))
    return tuple(slots)


def _slot(text: str, layout: StateLayout) -> Slot:
    for slot in layout.slots:
        if f"{slot.node}/{slot.index}" == text:
            return slot
    raise UserError(f"{text!r} is none of the slots of A: {', '.join(f'{s.node}/{s.index}' for s in layout.slots)}.")


def _plan_json(change: Plan) -> dict[str, Any]:
    from elastic_core.state.layout.layout import layout_to_json

    return {
        "bytes": {link.value: size for link, size in change.num_bytes.items()},
        "moved": to_json(change.moved),
        "bound": to_json(change.bound),
        "proven": change.proven,
        "map": [f"{slot.node}/{slot.index}" for slot in change.target.slots],
        "released": [f"{slot.node}/{slot.index}" for slot in change.released],
        "pieces": [to_json(piece) for piece in change.pieces],
        "layout": layout_to_json(change.target),
    }


def _print_plan(change: Plan) -> None:
    by_link: Mapping[str, int] = {link.value: size for link, size in change.num_bytes.items()}
    print_table(("link", "bytes", ""), ((link, size, size_text(size)) for link, size in by_link.items()))
    rows = (
        (f"into {what}", moved, bound, size_text(moved))
        for what, moved, bound in (
            ("devices", change.moved.device, change.bound.device),
            ("hosts", change.moved.host, change.bound.host),
            ("the job, from the store", change.moved.store, change.bound.store),
        )
    )
    print_table(("moved", "bytes", "lower bound", ""), rows)
    places = ", ".join(f"{rank}: {slot.node}/{slot.index}" for rank, slot in enumerate(change.target.slots))
    best = "no other map moves less" if change.proven else "not proven to be the best map"
    _out.print(f"ranks on slots  {places}  ({best})", markup=False)
    released = ", ".join(f"{slot.node}/{slot.index}" for slot in change.released) or "none"
    _out.print(f"released        {released}\npieces          {len(change.pieces)}", markup=False)
