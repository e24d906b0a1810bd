"""The page says times as the reasons beside it do: its JavaScript and `elastic_core.text` are one language."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files

import pytest

from elastic_core.text import plural, span

NODE = shutil.which("node")
SECONDS = [-3.0, 0.0, 0.44, 9.94, 10.2, 59.6, 119.4, 121.0, 600.0, 7139.0, 7260.0, 7500.0, 90_061.0, 172_900.0, 1e6]


@pytest.mark.skipif(NODE is None, reason="node is not installed: nothing here runs the page's JavaScript")
def test_durations_and_plurals_read_as_in_reasons() -> None:
    module = files("elastic_airflow") / "page" / "ui" / "format.js"
    script = (
        "const { duration, plural } = await import('data:text/javascript,' + encodeURIComponent(process.argv[1]));"
        "const seconds = JSON.parse(process.argv[2]);"
        "const words = [...seconds.map(duration), duration(Infinity), plural(1, 'job'), plural(12, 'job')];"
        "console.log(JSON.stringify(words));"
    )
    assert NODE is not None
    ran = subprocess.run(
        [NODE, "--input-type=module", "-e", script, module.read_text(), json.dumps(SECONDS)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    expected = [*map(span, SECONDS), span(float("inf")), plural(1, "job"), plural(12, "job")]
    assert json.loads(ran.stdout) == expected
