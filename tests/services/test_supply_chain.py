"""What the project is made of is listed, and the lists are those of what is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from supply_chain import licences, sbom
from supply_chain.lock_files import LOCK, pinned


def test_the_page_of_licences_is_current() -> None:
    assert licences.PAGE.read_text() == licences.page(), "run `make licences`"


def test_a_package_without_a_licence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(licences, "LOOKED_UP", {})
    with pytest.raises(ValueError, match="the metadata of huey names no licence: look it up"):
        licences.licence("huey")
    with pytest.raises(ValueError, match="no-such-package is pinned and not installed"):
        licences.licence("no-such-package")


def test_the_bill_of_materials_holds_every_package_with_its_licence_its_hashes_and_what_it_needs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "build" / "sbom.cdx.json"
    sbom.main(path)
    bill = json.loads(path.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    components = {component["name"]: component for component in bill["components"]}
    assert {name: component["version"] for name, component in components.items()} == {
        package.name: package.version for package in pinned(LOCK)
    }
    for package in pinned(LOCK):
        files = components[package.name]["externalReferences"]
        assert [file["hashes"][0]["content"] for file in files] == list(package.hashes)
        assert components[package.name]["licenses"][0]["license"]["name"]
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert needs.keys() == {"elastic-airflow"} | {component["purl"] for component in components.values()}
    assert components["httpcore"]["purl"] in needs[components["httpx"]["purl"]]
    assert {reference for wanted in needs.values() for reference in wanted} <= needs.keys()


def test_the_same_lock_gives_the_same_bill() -> None:
    assert sbom.bill_of_materials() == sbom.bill_of_materials()
