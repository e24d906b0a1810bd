"""`python -m supply_chain.sbom FILE`: a bill of materials of what runs, in CycloneDX 1.6 (JSON).

Every package of requirements.lock with its version, licence, package URL, the hashes of its files, and what it needs of
the others; as optional ones, those of the locks beside it (CUDA, Ray, adapters); and as excluded ones, which is
CycloneDX's word for what does not run with the rest, those of the tools' locks. Of both it does not say what they need,
since they need not be installed here; a tool's licence is there where it is known. The same locks give the same file:
it has no time and no random serial number.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from supply_chain.licences import licence, licence_beside, licence_of_tool
from supply_chain.lock_files import BESIDE, LOCK, TOOLS, Pinned, pinned


def bill_of_materials() -> dict[str, Any]:
    packages = pinned(LOCK)
    known = {package.normal_name: _reference(package) for package in packages}
    beside = [package for lock in BESIDE for package in pinned(lock)]
    runs = {_reference(package) for package in (*packages, *beside)}
    tools = {_reference(package): package for lock in TOOLS for package in pinned(lock)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": "elastic-airflow",
                "name": "elastic-airflow",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [
            *(_component(package, licence(package.name), "required") for package in packages),
            *(_component(package, licence_beside(package), "optional") for package in beside),
            *(_component(tools[ref], licence_of_tool(tools[ref]), "excluded") for ref in sorted(tools.keys() - runs)),
        ],
        "dependencies": [
            {"ref": "elastic-airflow", "dependsOn": sorted(known.values())},
            *({"ref": _reference(package), "dependsOn": _needs(package, known)} for package in packages),
        ],
    }


def _component(package: Pinned, said: str | None, scope: str) -> dict[str, Any]:
    return {
        "type": "library",
        "scope": scope,
        "bom-ref": _reference(package),
        "name": package.name,
        "version": package.version,
        "purl": _reference(package),
        **({"licenses": [{"license": {"name": said}}]} if said else {}),
        # A package has a file for each platform, and a component one hash of an algorithm: they are distributions.
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{package.normal_name}/{package.version}/#files",
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
            for digest in package.hashes
        ],
    }


def _reference(package: Pinned) -> str:
    return f"pkg:pypi/{package.normal_name}@{package.version}"


def _needs(package: Pinned, known: dict[str, str]) -> list[str]:
    """Of the lock's packages, without those of extras."""
    wanted = [Requirement(text) for text in requires(package.name) or []]
    names = {
        known.get(Pinned(r.name, "", ()).normal_name)
        for r in wanted
        if r.marker is None or r.marker.evaluate({"extra": ""})
    }
    return sorted(name for name in names if name is not None)


def main(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill_of_materials(), indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
