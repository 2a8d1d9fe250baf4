"""A block as a class, for use in one's own Python."""

import hashlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from extract.show import find_block
from lemur_core.files.errors import UserError


def load_block(folder: Path | str, block: str) -> type[Any]:
    """The class of a block. This EXECUTES the block's file in your process, without the sandbox: load what you trust.

    >>> SEModule = load_block("blocks", "timm@1.0.30::timm.layers.squeeze_excite.SEModule")

    The file is that of the folder's table, byte by byte; nothing is written. Loading it again gives the same class.

    Args: block: a block id, or whatever else names a block for `lemur show`.
    Raises: UserError if there is no such block, it has no code, its file was changed, or a package is missing.
    """
    row = find_block(Path(folder), block).row
    if row.code is None or row.file is None:
        raise UserError(f"{row.block}: has no code ({row.error_kind}: {row.error}); choose another block")
    path = Path(folder) / row.file
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; run `lemur verify {folder}`") from error
    if hashlib.sha256(data).hexdigest() != row.code_sha256:
        raise UserError(f"{path}: is not the code of {row.block}; run `lemur verify {folder}`")
    name = f"lemur_block_{row.code_sha256[:16]}"
    module = sys.modules.get(name)
    if module is None:
        module = _execute(name, path, data, row.block)
    found = getattr(module, row.name, None)
    if not isinstance(found, type):
        raise UserError(f"{row.block}: its file defines no class {row.name}; it is at level {row.level}")
    return found


def _execute(name: str, path: Path, data: bytes, block: str) -> ModuleType:
    """The file as a module of its own name, without the bytecode that an import would leave in the folder."""
    module = ModuleType(name)
    module.__file__ = str(path.resolve())
    sys.modules[name] = module  # dataclasses, pickle and inspect look it up there
    try:
        exec(compile(data, module.__file__, "exec"), module.__dict__)  # noqa: S102 - what the caller asks for
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ModuleNotFoundError):
            raise UserError(f"{block}: {error}; install it: `lemur show` lists what a block requires") from error
        raise
    return module
