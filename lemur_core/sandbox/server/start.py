"""The script that an interpreter is started with to become a server. Run by path; the standard library is enough.

The files of this folder are imported as a package under a private name, so that an interpreter which does not have our
distribution can run them, and foreign code that has a `sandbox` module of its own still finds that one.
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
