"""`python -m supply_chain.licences`: writes docs/licences.md, the licence of every package of the lock.

A package says its licence in its metadata: an SPDX expression (PEP 639), else a line of text, else classifiers. One
that says nothing at all is an error: look it up, and name it in `LOOKED_UP` with where that was.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from supply_chain.lock_files import ADAPTERS_LOCK, CUDA_LOCK, LOCK, RAY_LOCK, ROOT, TOOLS, Pinned, pinned

PAGE = ROOT / "docs" / "licences.md"
LONGEST = 60  # characters of a line of text that names a licence, and is not the licence itself
LOOKED_UP = {
    "axe-playwright-python": "MIT (its LICENSE file); axe-core in it is MPL-2.0",
    "huey": "MIT (its LICENSE file)",
    "skops": "MIT (its LICENSE file)",
}
# Of requirements-ray.lock, which is not installed everywhere: as their metadata say.
RAY = {
    **dict.fromkeys(("aiohttp-cors", "google-api-core", "proto-plus", "ray"), "Apache 2.0"),
    **dict.fromkeys(("msgpack", "opencensus", "opencensus-context"), "Apache-2.0"),
    **dict.fromkeys(("colorful", "py-spy", "python-discovery", "smart-open", "virtualenv"), "MIT"),
    "distlib": "PSF-2.0",
    "opentelemetry-exporter-prometheus": "Apache-2.0",
}
ADAPTERS = {  # likewise, of requirements-adapters.lock
    **dict.fromkeys(("accelerate", "tokenizers", "transformers"), "Apache 2.0"),
    **dict.fromkeys(
        ("hf-xet", "huggingface-hub", "lightning", "lightning-utilities", "pytorch-lightning", "torchmetrics"),
        "Apache-2.0",
    ),
    **dict.fromkeys(("httpcore2", "httpx2"), "BSD-3-Clause"),
    "tqdm": "MPL-2.0 AND MIT",
    "truststore": "MIT",
}
NVIDIA = "NVIDIA's own terms, but for triton (MIT): see each package's page on PyPI"
CUDA = {"triton": "MIT"}


def licence(name: str) -> str:
    """In the package's own words. Raises `ValueError` where it has none, or is not installed."""
    try:
        about = metadata(name)
    except PackageNotFoundError as error:
        raise ValueError(f"{name} is pinned and not installed: run `make setup`") from error
    if expression := about.get("License-Expression"):
        return str(expression)
    text = (about.get("License") or "").strip()
    if text and "\n" not in text and len(text) <= LONGEST and text.upper() != "UNKNOWN":
        return text
    classified = [
        line.rpartition(" :: ")[2]
        for line in about.get_all("Classifier") or []
        if line.startswith("License :: ") and line != "License :: OSI Approved"
    ]
    said = ", ".join(sorted(classified)) or LOOKED_UP.get(name)
    if not said:
        raise ValueError(f"the metadata of {name} names no licence: look it up, and add it to LOOKED_UP")
    return said


def licence_beside(package: Pinned) -> str:
    """Of a package of a lock beside requirements.lock, which need not be installed."""
    return (RAY | ADAPTERS | CUDA).get(package.normal_name, "NVIDIA's own terms: see its page on PyPI")


def licence_of_tool(package: Pinned) -> str | None:
    """Of a package of a tools' lock; None where no lock of the platform has it. Others that happen to be installed are
    not asked: the page would be another one on each machine."""
    if package.normal_name in {other.normal_name for other in pinned(LOCK)}:
        return licence(package.name)
    return (RAY | ADAPTERS | CUDA).get(package.normal_name)


def _tools() -> str:
    tools = {(p.name, p.version): p for lock in TOOLS for p in pinned(lock)}
    said = [(f"{name} {version}", licence_of_tool(tools[name, version])) for name, version in sorted(tools)]
    return ", ".join(f"{one} ({words})" if words else one for one, words in said)


def page() -> str:
    rows = [f"| {p.name} | {p.version} | {licence(p.name)} |" for p in pinned(LOCK)]
    ray = ", ".join(f"{p.name} {p.version} ({RAY[p.normal_name]})" for p in pinned(RAY_LOCK))
    adapters = ", ".join(f"{p.name} {p.version} ({ADAPTERS[p.normal_name]})" for p in pinned(ADAPTERS_LOCK))
    cuda = ", ".join(f"{p.name} {p.version}" for p in pinned(CUDA_LOCK))
    return "\n".join(
        [
            "# Licences of what is installed",
            "",
            "Written by `make licences` from the metadata of the packages of requirements.lock; a test compares them.",
            "This project's own is the [Apache License 2.0](../LICENSE).",
            "",
            "| package | version | licence, in its own words |",
            "|---|---|---|",
            *rows,
            "",
            "## With PyPI's build of torch, for CUDA",
            "",
            f"{NVIDIA}. {cuda}.",
            "",
            "## With Ray (`make ray`)",
            "",
            f"{ray}.",
            "",
            "## With Hugging Face's Trainer and Lightning (`make adapters`)",
            "",
            f"{adapters}.",
            "",
            "## Tools (`make lock`, `make audit`, `make docs`, `make kubernetes-check`)",
            "",
            "In environments of their own; nothing of the platform runs in them, nor are they part of what is built. "
            "Without a licence here: see the package's page on PyPI.",
            "",
            f"{_tools()}.",
            "",
        ]
    )


def main(path: Path = PAGE) -> None:
    path.write_text(page())


if __name__ == "__main__":
    main()
