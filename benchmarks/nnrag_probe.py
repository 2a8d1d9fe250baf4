"""What the judge does inside the sandbox: run a file as a module and look at one class of it."""

import importlib.util
import sys
import warnings
from pathlib import Path


def look(payload: dict[str, object]) -> dict[str, object]:
    """Whether a file runs, defines the class, and the class is an nn.Module.

    Args:
        payload: `code`, `name` of the class, `folder` to append to `sys.path` ("" for none).
    """
    import torch

    if payload["folder"]:
        sys.path.append(str(payload["folder"]))
    file = Path("candidate.py").resolve()
    file.write_text(str(payload["code"]), encoding="utf-8")
    specification = importlib.util.spec_from_file_location("candidate", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["candidate"] = module
    warnings.simplefilter("ignore")
    specification.loader.exec_module(module)
    found = getattr(module, str(payload["name"]), None)
    if not isinstance(found, type):
        return {"class": False, "module": False}
    return {"class": True, "module": issubclass(found, torch.nn.Module)}
