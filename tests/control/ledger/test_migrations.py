from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from elastic_core.control.ledger import migrations
from elastic_core.control.ledger.tables import Base


def test_the_classes_say_what_the_migrated_database_holds(ledger_url: str) -> None:
    engine = create_engine(ledger_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_upgrading_twice_is_harmless(postgres_url: str) -> None:
    engine = create_engine(postgres_url)
    assert migrations.current(engine) is None
    migrations.upgrade(postgres_url)
    migrations.upgrade(postgres_url)
    assert migrations.current(engine) == migrations.newest()
    engine.dispose()
