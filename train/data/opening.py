"""Which form a source is in, from what the user wrote and what lies there."""

from pathlib import Path

from lemur_core.files.errors import UserError
from train.data.batches import find_archive, find_batches
from train.data.hub import find_hub
from train.data.parquet import find_parquet, refuse_file
from train.data.source import Source
from train.data.synthetic import find_synthetic

_FORMS = (
    "give a folder with train-*.parquet and test-*.parquet, cifar-10-python.tar.gz or cifar-10-binary.tar.gz or the "
    "folder in it, torchvision:ROOT, hf://datasets/uoft-cs/cifar10, or synthetic"
)
_ARCHIVES = (".tar", ".tar.gz", ".tgz")


def open_source(name: str) -> Source:
    """The source of the images; nothing is decoded yet.

    Raises: UserError if there is none of a known form, or a file of it is missing; RetryableError if the Hub cannot be
        reached.
    """
    if name.startswith("hf://"):
        return find_hub(name)
    if name == "synthetic" or name.startswith("synthetic:"):
        return find_synthetic(name)
    root = name.removeprefix("torchvision:")
    path = Path(root).expanduser()
    try:
        path.stat()
        if path.is_dir():
            return _open_folder(path, name, only_batches=root != name)
    except ValueError as error:
        raise UserError(f"{name!r}: no such file or folder; {_FORMS}") from error
    except OSError as error:
        raise UserError(f"{name}: {error.strerror}; {_FORMS}") from error
    if root != name:
        raise UserError(f"{name}: {path} is not a folder; give the root folder that torchvision's CIFAR10 was given")
    if path.name.endswith(_ARCHIVES):
        return find_archive(path)
    if path.suffix == ".parquet":
        raise refuse_file(path)
    raise UserError(f"{name}: unknown kind of file; {_FORMS}")


def _open_folder(path: Path, name: str, *, only_batches: bool) -> Source:
    found = find_batches(path, name)
    if found is None and only_batches:
        raise UserError(
            f"{name}: no folder cifar-10-batches-py there; give the root that torchvision's CIFAR10 was given"
        )
    if found is None:
        found = find_parquet(path, name)
    if found is None:
        raise UserError(f"{name}: holds no CIFAR-10; {_FORMS}")
    return found
