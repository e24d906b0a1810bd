"""The site of the documentation: what `make docs` makes of the pages and of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs_site import __main__ as site
from docs_site.reference import MODULES, pages
from elastic_core.policy import registry
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec

ROOT = Path(__file__).parents[2]
NAV = (ROOT / "docs_site" / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return pages()


@pytest.mark.parametrize("folder", ["guide", "design"])
def test_every_page_of_the_guide_and_of_the_design_is_in_the_navigation(folder: str) -> None:
    named = set(re.findall(rf"{folder}/([\w-]+\.md)", NAV))
    assert {page.name for page in (ROOT / "docs" / folder).glob("*.md")} <= named


def test_every_page_of_the_reference_is_in_the_navigation(reference: dict[str, str]) -> None:
    assert set(re.findall(r"reference/([\w-]+\.md)", NAV)) == set(reference)


def test_the_reference_has_every_field_setting_policy_and_command(reference: dict[str, str]) -> None:
    asked_for = JobSpec.model_json_schema()["properties"]  # what a sweep writes by itself is not
    assert JobSpec.model_fields.keys() - asked_for.keys() == {"group"}
    assert all(f"| `{name}` |" in reference["job-spec.md"] for name in asked_for)
    assert all(f"`ELASTIC_{name.upper()}`" in reference["settings.md"] for name in Settings.model_fields)
    assert all(f"\n## {name}\n" in reference["policies.md"] for name in registry.names())
    assert "`elastic jobs submit`" in reference["commands.md"]


def test_modules_of_the_reference_are_there() -> None:
    for module in (name for names in MODULES.values() for name in names):
        path = module.replace(".", "/") + ".py"
        assert (ROOT / path).exists() or (ROOT / "plugins" / path).exists(), module


def test_links_lead_to_pages_of_the_site_and_to_names_of_what_is_no_page(tmp_path: Path) -> None:
    guide, source = tmp_path / "guide" / "one.md", ROOT / "docs" / "guide" / "one.md"
    placed = {source: guide, ROOT / "README.md": tmp_path / "index.md"}
    text = "[start](../../README.md#try-it) and [the loop](../../examples/plain_loop.py), [away](https://example.org)"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_text", lambda _: f"{text}\n```\n[code](x)\n```\n")
        made = site._with_links(source, guide, placed)
    assert made.splitlines()[0] == (
        "[start](../index.md#try-it) and the loop (`examples/plain_loop.py`), [away](https://example.org)"
    )
    assert "[code](x)" in made
