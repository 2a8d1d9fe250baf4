"""Writes constraints.txt and pylock.toml: the exact versions that `make` installs by, resolved from pyproject.toml.

    make lock

The release of torch is chosen by hand, here: what is measured and shown in the documents was computed with it. All else
is the newest that goes with it, on Linux, for every Python that is supported. The files of pylock.toml (PEP 751) are
named with their digests and lie below `wheels/`, where `pip download -d wheels` puts them: an index is not named.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CHOSEN = ("torch==2.14.1", "torchvision==0.29.1")
PYTHONS = ("3.11", "3.12", "3.13")

_HEAD = "# The versions that `make` installs. Written by `make lock`; not to be edited.\n"
_OLDEST = f"python_full_version >= '{PYTHONS[0]}'"
_PLATFORM = re.compile(r"any|.*linux.*_(x86_64|aarch64)")
_CPYTHONS = {f"cp{version.replace('.', '')}" for version in PYTHONS}
_NEWER = re.compile(r"py3(1[4-9]|[2-9]\d)")


def main() -> None:
    """Resolve and write both files."""
    with tempfile.TemporaryDirectory() as scratch:
        chosen = Path(scratch) / "chosen.txt"
        chosen.write_text("\n".join(CHOSEN), encoding="utf-8")
        lock = tomllib.loads(resolve(chosen, Path(scratch) / "pylock.toml"))
    (ROOT / "constraints.txt").write_text(_HEAD + constraints_text(lock), encoding="utf-8")
    (ROOT / "pylock.toml").write_text(_HEAD + lock_text(lock), encoding="utf-8")


def resolve(chosen: Path, output: Path) -> str:
    """What uv resolves, in its own text."""
    command = [
        *(str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--all-extras"),
        *("--python-version", PYTHONS[0], "--fork-strategy", "fewest", "--no-header", "--no-annotate"),
        *("--constraints", str(chosen), "--output-file", str(output), "--format", "pylock.toml", "pyproject.toml"),
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    return output.read_text(encoding="utf-8")


def constraints_text(lock: dict[str, Any]) -> str:
    """Return one pinned version a line, for pip and uv."""
    lines = []
    for package in lock["packages"]:
        # The oldest Python is a part of every marker of the lock, and `pyproject.toml` asks for it already.
        marker = package.get("marker", "").removeprefix(_OLDEST).removeprefix(" and ")
        lines.append(f"{package['name']}=={package['version']}{marker and f' ; {marker}'}\n")
    return "".join(lines)


def lock_text(lock: dict[str, Any]) -> str:
    """The lock in PEP 751's form, its files by name and digest."""
    parts = [f'lock-version = "1.0"\ncreated-by = "lemur-curator"\nrequires-python = ">={PYTHONS[0]}"\n']
    for package in lock["packages"]:
        wheels = [wheel for wheel in package.get("wheels", ()) if is_wanted(file_name(wheel))]
        sdists = [] if wheels or "sdist" not in package else [package["sdist"]]
        if not wheels and not sdists:
            continue  # of another platform
        lines = ["[[packages]]", f'name = "{package["name"]}"', f'version = "{package["version"]}"']
        if "marker" in package:
            lines.append(f'marker = "{package["marker"]}"')
        lines += [f"sdist = {entry(file)}" for file in sdists]
        if wheels:
            lines += ["wheels = [", *(f"    {entry(wheel)}," for wheel in sorted(wheels, key=file_name)), "]"]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def is_wanted(name: str) -> bool:
    """Whether a wheel can be installed on Linux with a Python that is supported."""
    python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    if _PLATFORM.fullmatch(platform) is None or "musl" in platform:
        return False
    compiled = python.startswith("cp") and abi != "abi3"
    return python in _CPYTHONS if compiled else _NEWER.fullmatch(python) is None


def file_name(file: dict[str, Any]) -> str:
    """The name of a file of the lock."""
    return str(file["url"]).rpartition("/")[2].replace("%2B", "+")


def entry(file: dict[str, Any]) -> str:
    """One file: its place, size and digest."""
    size = f"size = {file['size']}, " if "size" in file else ""
    return f'{{ path = "wheels/{file_name(file)}", {size}hashes = {{ sha256 = "{file["hashes"]["sha256"]}" }} }}'


if __name__ == "__main__":
    main()
