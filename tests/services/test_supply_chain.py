"""What the project is made of is listed, and the lists are those of what is installed."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import metadata
from pathlib import Path

import pytest

from supply_chain import licences, sbom
from supply_chain.lock_files import ADAPTERS_LOCK, BESIDE, LOCK, RAY_LOCK, ROOT, TOOLS, pinned

INSTALLED = (LOCK, *BESIDE)


def test_the_page_of_licences_is_current() -> None:
    assert licences.PAGE.read_text() == licences.page(), "run `make licences`"


def test_the_page_is_the_same_whatever_else_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, locked = licences.page(), {package.normal_name for package in pinned(LOCK)}
    others = {package.name for lock in TOOLS for package in pinned(lock) if package.normal_name not in locked}
    assert "msgpack" in others, "of the tools and of Ray"
    for name in others:
        about = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\nLicense-Expression: LicenseRef-Other\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert metadata("msgpack")["License-Expression"] == "LicenseRef-Other"
    assert licences.page() == page


def test_a_package_without_a_licence_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(licences, "LOOKED_UP", {})
    with pytest.raises(ValueError, match="the metadata of huey names no licence: look it up"):
        licences.licence("huey")
    with pytest.raises(ValueError, match="no-such-package is pinned and not installed"):
        licences.licence("no-such-package")


def test_the_bill_of_materials_holds_every_package_with_its_licence_and_its_hashes(tmp_path: Path) -> None:
    path = tmp_path / "build" / "sbom.cdx.json"
    sbom.main(path)
    bill = json.loads(path.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    runs = [component for component in bill["components"] if component["scope"] != "excluded"]
    components = {component["name"]: component for component in runs}
    packages = {package.name: (package, lock) for lock in INSTALLED for package in pinned(lock)}
    assert components.keys() == packages.keys()
    assert len(runs) == len(components), "none is there twice"
    for name, (package, lock) in packages.items():
        assert components[name]["version"] == package.version
        files = components[name]["externalReferences"]
        assert [file["hashes"][0]["content"] for file in files] == list(package.hashes)
        assert components[name]["licenses"][0]["license"]["name"]
        assert components[name]["scope"] == ("required" if lock == LOCK else "optional")


def test_the_bill_holds_every_tool_as_none_that_runs() -> None:
    components = sbom.bill_of_materials()["components"]
    references = [component["bom-ref"] for component in components]
    assert len(references) == len(set(references)), "none is there twice"
    tools = {sbom._reference(package): package for lock in TOOLS for package in pinned(lock)}
    assert tools.keys() <= set(references)
    excluded = {component["bom-ref"]: component for component in components if component["scope"] == "excluded"}
    assert excluded.keys() == tools.keys() - {one["bom-ref"] for one in components if one["scope"] != "excluded"}
    for reference, component in excluded.items():
        hashes = [file["hashes"][0]["content"] for file in component["externalReferences"]]
        assert hashes == list(tools[reference].hashes)
    page = licences.PAGE.read_text()
    assert [one for one in tools.values() if f"{one.name} {one.version}" not in page] == []


def test_the_bill_says_what_each_package_of_the_lock_needs() -> None:
    bill = sbom.bill_of_materials()
    purls = {one["name"]: one["purl"] for one in bill["components"] if one["scope"] != "excluded"}
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert needs.keys() == {"elastic-airflow"} | {purls[package.name] for package in pinned(LOCK)}
    assert purls["httpcore"] in needs[purls["httpx"]]
    assert {reference for wanted in needs.values() for reference in wanted} <= needs.keys()


def test_licences_are_stated_of_what_need_not_be_installed_and_of_nothing_else() -> None:
    stated = licences.RAY.keys() | licences.ADAPTERS.keys() | licences.CUDA.keys()
    assert stated <= {package.normal_name for lock in BESIDE for package in pinned(lock)}
    for lock in (RAY_LOCK, ADAPTERS_LOCK):
        assert {package.normal_name for package in pinned(lock)} <= stated


def test_every_lock_is_audited() -> None:
    """As `make audit` would run it, which names the locks that are audited and asks nobody here."""
    said = subprocess.run(["make", "--dry-run", "audit"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    locks = sorted([*ROOT.glob("*.lock"), *ROOT.glob("supply_chain/*.lock")])
    assert set(INSTALLED) < set(locks)
    for lock in locks:
        assert re.search(rf"pip-audit --strict .*-r {lock.relative_to(ROOT)}$", said, re.M), lock


def test_the_same_lock_gives_the_same_bill() -> None:
    assert sbom.bill_of_materials() == sbom.bill_of_materials()
