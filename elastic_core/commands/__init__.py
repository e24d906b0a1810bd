"""The commands of `elastic`, one Typer app a group; they read arguments, call a room, and print a table or JSON.
May import every room (the heavy ones inside the command); only `elastic_core.cli` imports them."""
