"""The simulator is a guest of the product: decisions never depend on it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALLOWED = {"elastic_core/commands/simulate.py", "elastic_core/control/whatif.py"}


def test_only_the_command_and_the_what_if_import_the_simulator() -> None:
    files = [*ROOT.glob("elastic_core/**/*.py"), *ROOT.glob("plugins/**/*.py"), *ROOT.glob("dags/**/*.py")]
    importing = {
        str(path.relative_to(ROOT))
        for path in files
        if re.search(r"^\s*(from|import) elastic_core\.sim\b", path.read_text(), re.M)
    }
    assert {name for name in importing if not name.startswith("elastic_core/sim/")} == ALLOWED
