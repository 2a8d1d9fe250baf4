"""The formatter that a project configures, applied to the new files; nothing is changed if it is not installed here."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: Formatter -> its arguments for text on the standard input; the path of the file follows them.
_ARGUMENTS = {
    "isort": ("-", "--quiet", "--filename"),
    "black": ("-", "--quiet", "--stdin-filename"),
    "ruff": ("format", "-", "--quiet", "--stdin-filename"),
}
_CONFIGURATIONS = {"isort": (".isort.cfg",), "black": (), "ruff": ("ruff.toml", ".ruff.toml")}
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Formatter:
    """The configured formatters of a project that are installed: name -> path of the program, in the order to run."""

    root: Path
    programs: Mapping[str, str]

    def format(self, files: Mapping[str, str]) -> tuple[dict[str, str], str]:
        """Format new files.

        Args: files: path below the project -> text.
        Returns: the new texts, and a note for the user; "" if the project configures no formatter that is installed.
        """
        texts = dict(files)
        for name, program in self.programs.items():
            for path in files:
                texts[path] = _run([program, *_ARGUMENTS[name], path], texts[path], self.root)
                if not texts[path]:  # a wrong configuration or version: its users see its message when they run it
                    return dict(
                        files
                    ), f"format    {name}, which the project configures, failed on {path}: left as it was"
        return texts, f"format    {' and '.join(self.programs)}, as the project configures" if self.programs else ""


def read_formatter(root: Path) -> Formatter:
    """Read which formatters a project configures, in files of its root folder, and find the installed ones.

    Ruff is often configured as a linter alone, so Black takes precedence over it.
    """
    try:
        tools = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("tool", {})
    except (OSError, ValueError):
        tools = {}
    named = [
        name
        for name, files in _CONFIGURATIONS.items()
        if name in tools or any((root / file).is_file() for file in files)
    ]
    chosen = [name for name in named if name != "ruff" or "black" not in named]
    # The programs of this environment need not be on the path.
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    programs = {name: program for name in chosen if (program := shutil.which(name, path=folders)) is not None}
    return Formatter(root, programs)


def _run(command: list[str], text: str, folder: Path) -> str:
    """Return the formatted text; "" if the formatter failed."""
    try:
        done = subprocess.run(
            command, input=text.encode(), capture_output=True, cwd=folder, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode() if done.returncode == 0 else ""
