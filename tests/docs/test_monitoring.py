"""The dashboard and the alert rules speak of metrics that there are, and of labels that they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_core.control.metrics.metric_families import FAMILIES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "monitoring"
LABELS = {sample: {*family.labels, "le", "job"} for family in FAMILIES for sample in family.samples()}
DASHBOARD = json.loads((FOLDER / "grafana.json").read_text())
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


def texts() -> Iterator[tuple[str, str]]:
    """Name and PromQL of every panel and of every rule."""
    for panel in DASHBOARD["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    yield from ((rule["alert"], rule["expr"]) for rule in RULES)


@pytest.mark.parametrize(("name", "query"), list(texts()))
def test_every_metric_and_label_that_a_query_names_is_there(name: str, query: str) -> None:
    metrics = re.findall(r"\b(elastic_\w+|up)\b", re.sub(r'"[^"]*"', "", query))
    assert metrics, name
    assert set(metrics) - {"up"} <= set(LABELS), name
    known = {"job"}.union(*(LABELS[metric] for metric in metrics if metric != "up"))
    matched = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", query)
    grouped = [label.strip() for labels in re.findall(r"by \(([^)]*)\)", query) for label in labels.split(",")]
    assert {*matched, *grouped} <= known, name
    assert query.count("(") == query.count(")")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_rule_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert all(rule["annotations"][part] for part in ("summary", "description"))


def test_rules_names_of_metrics_in_words_are_there_too() -> None:
    named = {name for rule in RULES for name in re.findall(r"\belastic_\w+", str(rule["annotations"]))}
    assert named <= set(LABELS)


def test_the_guide_has_every_metric_and_every_rule() -> None:
    guide = (ROOT / "docs" / "guide" / "monitor.md").read_text()
    assert {name for name in re.findall(r"`(elastic_\w+)`", guide)} == {s for f in FAMILIES for s in _in_guide(f)}
    assert all(f"`{rule['alert']}`" in guide for rule in RULES)


def _in_guide(family: Any) -> tuple[str, ...]:
    return (family.name,) if family.bounds else family.samples()


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
