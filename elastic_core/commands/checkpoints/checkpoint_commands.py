"""`elastic checkpoint ls | show | verify | export | diff | plan | reshard`: works on a plain folder or bucket, without
any service. Only `now`, `fork` and `ls` ask one.

A checkpoint is named by its folder (`/data/store/job/lineage-0/step-...`), its address (`s3://bucket/job/...`), or its
uri below the configured store, as `ls` prints it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastic_core.commands.checkpoints.changing import plan, reshard
from elastic_core.commands.checkpoints.checkpoint_now import now
from elastic_core.commands.checkpoints.exporting import export
from elastic_core.commands.checkpoints.forking import fork
from elastic_core.commands.opening import JobId, Sha256, Store, locate, open_checkpoint
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import to_json
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.protocol.http_client import HttpControl
from elastic_core.settings import Settings
from elastic_core.state.stores.store_urls import open_store
from elastic_core.text import size_text

if TYPE_CHECKING:  # torch takes seconds to import: each command brings it when it needs it
    from elastic_core.state.format.manifest import Manifest

app = typer.Typer(help="Checkpoints: list, show, verify, export, compare, reshard.", no_args_is_help=True)
_out = Words(highlight=False, soft_wrap=True)

app.command()(plan)
app.command()(reshard)
app.command()(export)
app.command()(now)
app.command()(fork)


@app.command()
def ls(
    job: JobId,
    store: Annotated[str, typer.Option(help="look into this folder or bucket instead of asking the ledger")] = "",
    as_json: Json = False,
) -> None:
    """A job's checkpoints: those committed in the ledger, or with --store all that lie there."""
    if store:
        _list_store(job, store, as_json)
        return
    settings = Settings()
    secret = settings.secret_file("control")
    if not secret.is_file():
        raise InfrastructureError(
            f"There is no platform here ({secret} is missing): start it with `elastic up`, set ELASTIC_HOME, or list "
            "a folder with --store."
        )
    control = HttpControl(settings.api_url(), secret.read_text().strip().encode(), patience_seconds=5.0)
    records = control.checkpoints(job)
    if as_json:
        print_json([to_json(record) for record in records])
        return
    rows = (
        (r.checkpoint_id, r.lineage, r.step, r.samples, size_text(r.size_bytes), _time(r.committed_at),
         _metrics(r.metrics), " ".join(word for word, holds in (("final", r.final), ("BAD", r.bad)) if holds), r.uri)
        for r in records
    )  # fmt: skip
    print_table(("id", "lineage", "step", "samples", "size", "committed", "metrics", "", "uri"), rows)


@app.command()
def show(uri: str, store: Store = "", sha256: Sha256 = "", as_json: Json = False) -> None:
    """What a checkpoint holds: whose it is, its scalars and its tensors."""
    _, manifest = open_checkpoint(uri, store, sha256)
    if as_json:
        print_json(_manifest_json(manifest))
        return
    for name, value in to_json(manifest.header).items():
        _out.print(f"{name:11} {value}", markup=False)
    _out.print(f"sha256      {manifest.sha256}\nsize        {size_text(manifest.size_bytes)}", markup=False)
    _out.print(f"scalars     {json.dumps(manifest.scalars, sort_keys=True)}", markup=False)
    rows = (
        (t.name, t.dtype, "x".join(map(str, t.shape)) or "scalar", len(t.tiles),
         size_text(sum(p.length for p in t.tiles)), ", ".join(sorted({p.file for p in t.tiles})))
        for t in manifest.tensors.values()
    )  # fmt: skip
    print_table(("tensor", "type", "shape", "tiles", "size", "in"), rows)


@app.command()
def verify(uri: str, store: Store = "", sha256: Sha256 = "", as_json: Json = False) -> None:
    """Read every byte and hold it against its checksums. Exit code 1: corrupt."""
    from elastic_core.state.format.reading import verify as verify_bytes

    place, relative = locate(uri, store)
    try:
        verified = verify_bytes(place, relative, sha256 or None)
    except CorruptCheckpoint as error:
        if as_json:
            print_json({"ok": False, "fault": str(error)})
        else:
            _out.print(f"corrupt: {error}", markup=False)
        raise typer.Exit(1) from error
    if as_json:
        print_json({"ok": True, **to_json(verified)})
    else:
        _out.print(
            f"ok: {verified.num_tensors} tensors in {verified.num_tiles} tiles of {verified.num_files} files, "
            f"{size_text(verified.size_bytes)}, manifest {verified.sha256}",
            markup=False,
        )


@app.command()
def diff(first: str, second: str, store: Store = "", as_json: Json = False) -> None:
    """How two checkpoints differ, tensor by tensor. Exit code 1: tensors or scalars differ."""
    from elastic_core.state.format.inspecting import compare

    store_a, a = open_checkpoint(first, store, "")
    store_b, b = open_checkpoint(second, store, "")
    difference = compare(store_a, a, store_b, b)
    if as_json:
        print_json({"same": difference.same, **to_json(difference)})
    else:
        for path, (first_value, second_value) in difference.values.items():
            _out.print(f"{path}: {json.dumps(first_value)} -> {json.dumps(second_value)}", markup=False)
        rows = ((t.name, t.what, _number(t.num_different), _number(t.max_abs)) for t in difference.tensors)
        print_table(("tensor", "differs in", "elements", "by at most"), rows)
        _out.print(f"{difference.num_equal} tensors are equal bit for bit, {len(difference.tensors)} differ")
    if not difference.same:
        raise typer.Exit(1)


def _list_store(job: str, store: str, as_json: bool) -> None:
    from elastic_core.state.format.inspecting import find

    listed = find(open_store(store, endpoint=Settings().s3_endpoint), job)
    if as_json:
        print_json([to_json(checkpoint) for checkpoint in listed])
        return
    rows = ((c.header.lineage, c.header.step, c.header.samples, size_text(c.size_bytes), c.uri, "") if c.header
            else ("", "", "", size_text(c.size_bytes), c.uri, c.fault) for c in listed)  # fmt: skip
    print_table(("lineage", "step", "samples", "size", "uri", "fault"), rows)


def _manifest_json(manifest: Manifest) -> dict[str, Any]:
    """As the file has it: a layout's placements once each."""
    from elastic_core.state.layout.layout import layout_to_json

    layout = None if manifest.layout is None else layout_to_json(manifest.layout)
    return {**to_json(replace(manifest, layout=None)), "layout": layout}


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _metrics(metrics: Any) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in metrics.items())


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
