"""Brings a database to the ledger's newest tables. Shipped in the package: no alembic.ini is
needed. Imported by the ledger, the services and whoever upgrades by hand; imports alembic only when it does."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, text

from elastic_core.errors import UserError


def _config(url: str = "") -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["url"] = url  # not an option: a password may hold a percent sign
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Create or bring up to date the ledger in the PostgreSQL database at `url`. Harmless when it is.

    Raises `UserError` for a ledger of a later release, which is left as it is.
    """
    engine = create_engine(url)
    try:
        require_known(current(engine))
    finally:
        engine.dispose()
    command.upgrade(_config(url), revision)


def require_known(revision: str | None) -> None:
    """Raises `UserError` for a revision that is none of this release's; None, no ledger yet, is fine."""
    known = [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]
    if revision is not None and revision not in known:
        raise UserError(
            f"the ledger is at revision {revision}, which is not of this release: it knows {known[-1]} to {known[0]}. "
            "A later release has upgraded it, and a ledger is not taken back: install that release again, or restore a "
            "backup from before the upgrade (`elastic restore`)"
        )


def newest() -> str:
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def current(engine: Engine) -> str | None:
    """The revision that the database is at; None where it holds no ledger."""
    with engine.connect() as connection:
        if connection.execute(text("SELECT to_regclass('alembic_version')")).scalar() is None:
            return None
        revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
        return revision
