"""`elastic nodes list | set-aside | take-back`: which nodes get jobs, and why some do not."""

from __future__ import annotations

from datetime import datetime

import typer

from elastic_core.commands.opening import open_api
from elastic_core.commands.printing import Json, Words, print_json
from elastic_core.domain import to_json
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.protocol.records import NodeStatus
from elastic_core.settings import Settings

app = typer.Typer(help="See the nodes, set them aside, take them back.", no_args_is_help=True)
_out = Words(highlight=False, soft_wrap=True)


@app.command("list")
def list_nodes(as_json: Json = False) -> None:
    """All nodes: how many of their slots are held, and whether they are set aside."""
    _print(open_api(Settings()).nodes(), as_json)


@app.command("set-aside")
def set_aside(
    node: str,
    reason: str = typer.Option(..., help="shown to everybody"),
    minutes: float | None = typer.Option(
        None, min=0.0, help="the node goes in so many: what runs there commits and leaves before, room or not"
    ),
    as_json: Json = False,
) -> None:
    """Give this node no further jobs. What runs there moves at a boundary, once there is room elsewhere."""
    settings = Settings()
    leaves_at = None if minutes is None else SteadyClock(settings.home)() + 60 * minutes
    _print([open_api(settings).set_aside_node(node, reason, leaves_at)], as_json)


@app.command("take-back")
def take_back(node: str, as_json: Json = False) -> None:
    """Use this node again. What happened on it before counts no more."""
    _print([open_api(Settings()).take_back_node(node)], as_json)


def _print(nodes: list[NodeStatus], as_json: bool) -> None:
    if as_json:
        print_json([to_json(node) for node in nodes])
        return
    for node in nodes:
        held = f"{node.held_slots} of {node.num_slots} slots held"
        _out.print(f"{node.name}  {node.type}  {held}  {_state(node)}", markup=False)


def _state(node: NodeStatus) -> str:
    if node.set_aside_at is None:
        return "in use" if node.present else "gone"
    since = datetime.fromtimestamp(node.set_aside_at).astimezone().isoformat(timespec="seconds")
    return f"set aside {since} by {node.set_aside_by}: {node.set_aside_reason}{goes(node)}"


def goes(node: NodeStatus) -> str:
    """When it does, to be put behind why it is set aside; "" where nobody says that it goes."""
    if node.leaves_at is None:
        return ""
    return f"; it goes at {datetime.fromtimestamp(node.leaves_at).astimezone().isoformat(timespec='seconds')}"
