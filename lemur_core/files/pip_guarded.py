"""Run as a script: run pip unable to start any program, so that downloading an sdist cannot run its build code.

    python -P pip_guarded.py STEM RESULT MAX_BYTES PIP-ARGUMENT...

`pip download` of an sdist always starts its build backend in a subprocess to get metadata. Here an audit hook, which
code in the same interpreter cannot remove, refuses that subprocess. The archive is on disk by then: if one whose file
name starts with STEM was opened, its path is written to the file RESULT and pip ends at once with exit code 77, before
it cleans up. A wheel needs no other process. `keyring` may run: pip asks it for the user's password. No file of more
than MAX_BYTES can be written (0: no limit).

Source: https://docs.python.org/3/library/audit_events.html
"""

import os
import re
import resource
import runpy
import sys

EXIT_ARCHIVE = 77

_STARTS = frozenset(
    {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system"}
)
_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar", ".zip")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def become_pip(arguments: list[str]) -> None:
    """Install the hook and become pip. Args: arguments: STEM, RESULT, MAX_BYTES, those of pip."""
    stem, result, max_bytes = _normal(arguments[0]), arguments[1], int(arguments[2])
    opened = ""

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal opened
        if event == "open":
            path = arguments[0]
            if isinstance(path, str) and path.endswith(_SUFFIXES) and _normal(os.path.basename(path)).startswith(stem):  # noqa: PTH119
                opened = os.path.abspath(path)  # noqa: PTH100 (only os: each import here would raise events)
        elif event in _STARTS or event == "pty.spawn":
            if event == "subprocess.Popen" and os.path.basename(str(arguments[0])) == "keyring":  # noqa: PTH119
                return
            if opened:
                with open(result, "w", encoding="utf-8") as file:  # noqa: PTH123
                    file.write(opened)
                os._exit(EXIT_ARCHIVE)
            raise PermissionError(f"{event}: pip may not start programs here")

    if max_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    sys.addaudithook(refuse)
    sys.argv = ["pip", *arguments[3:]]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    become_pip(sys.argv[1:])
