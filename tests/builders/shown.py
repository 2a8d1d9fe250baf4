"""What `lemur show` prints of a block."""

from pathlib import Path

from lemur.folders import print_item, show


def show_block(folder: Path, wanted: str, *, as_json: bool = False) -> None:
    print_item(show(wanted, [folder]), as_json=as_json)
