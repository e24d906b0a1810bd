"""Alembic's entry. The URL comes from `elastic_core.control.ledger.migrations`, never from an alembic.ini."""

from alembic import context
from sqlalchemy import create_engine, pool

from elastic_core.control.ledger.tables import Base


def run() -> None:
    url = context.config.attributes["url"]
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection, target_metadata=Base.metadata, transaction_per_migration=True)
        # Two services that start at once migrate one after the other.
        connection.exec_driver_sql("SELECT pg_advisory_lock(7023110)")
        connection.commit()
        with context.begin_transaction():
            context.run_migrations()


run()
