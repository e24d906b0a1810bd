"""The page says times as the reasons beside it do: its JavaScript and `elastic_core.text` are one language."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest

from elastic_core.text import plural, size_text, span

NODE = shutil.which("node")
SECONDS = [-3.0, 0.0, 0.44, 9.94, 10.2, 59.6, 119.4, 121.0, 600.0, 7139.0, 7260.0, 7500.0, 90_061.0, 172_900.0, 1e6]
BYTES = [0, 1, 1023, 1024, 3 * 2**20, 5_000_000_000, 2**50]


@pytest.mark.skipif(NODE is None, reason="node is not installed: nothing here runs the page's JavaScript")
def test_metrics_that_are_no_numbers_are_said_in_words() -> None:
    assert said("['NaN', NaN, 'Infinity', '-Infinity', 0.5].map(measure)", "measure") == [
        "not a number", "not a number", "infinite", "minus infinite", "0.5"
    ]  # fmt: skip


def said(expression: str, *imported: str) -> Any:
    """What the page's JavaScript makes of an expression that uses these functions of `format.js`."""
    assert NODE is not None
    module = files("elastic_airflow") / "page" / "ui" / "format.js"
    script = (
        f"const {{ {', '.join(imported)} }} = await import('data:text/javascript,' + encodeURIComponent("
        f"process.argv[1])); console.log(JSON.stringify({expression}));"
    )
    ran = subprocess.run(
        [NODE, "--input-type=module", "-e", script, module.read_text()],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(ran.stdout)


@pytest.mark.skipif(NODE is None, reason="node is not installed: nothing here runs the page's JavaScript")
def test_durations_plurals_and_sizes_read_as_in_reasons() -> None:
    module = files("elastic_airflow") / "page" / "ui" / "format.js"
    script = (
        "const [code, seconds, bytes] = [process.argv[1], ...process.argv.slice(2).map((text) => JSON.parse(text))];"
        "const { duration, plural, size } = await import('data:text/javascript,' + encodeURIComponent(code));"
        "const words = [...seconds.map(duration), duration(Infinity), plural(1, 'job'), plural(12, 'job')];"
        "words.push(...bytes.map(size));"
        "console.log(JSON.stringify(words));"
    )
    assert NODE is not None
    ran = subprocess.run(
        [NODE, "--input-type=module", "-e", script, module.read_text(), json.dumps(SECONDS), json.dumps(BYTES)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    expected = [*map(span, SECONDS), span(float("inf")), plural(1, "job"), plural(12, "job"), *map(size_text, BYTES)]
    assert json.loads(ran.stdout) == expected
