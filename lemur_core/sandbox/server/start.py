"""The script that turns an interpreter into a server. Run by path; it needs only the standard library.

The files of this folder are imported as a package under a private name: an interpreter without our distribution can run
them, and foreign code that has its own `sandbox` module still imports that one.
"""

import importlib
import sys
import types
from pathlib import Path

PACKAGE = "_lemur_sandbox"

if __name__ == "__main__":
    package = types.ModuleType(PACKAGE)
    package.__path__ = [str(Path(__file__).resolve().parent)]
    sys.modules[PACKAGE] = package
    importlib.import_module(f"{PACKAGE}.loop").serve()
