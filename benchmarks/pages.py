"""How large the pages of folders are beside their other files: `python -m benchmarks.pages FOLDER...`."""

import sys
from pathlib import Path


def main(folders: list[Path]) -> None:
    """Print a line a folder."""
    for folder in folders:
        files = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        page = sum(size for path, size in files.items() if path.relative_to(folder).parts[0] in ("index.html", "page"))
        others = sum(files.values()) - page
        print(
            f"{folder.name}: page {page / 2**20:.1f} MiB, {100 * page / others:.0f} % of the {others / 2**20:.1f} MiB"
        )


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
