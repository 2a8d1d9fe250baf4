"""Files that a browser would run: which ones a finished folder may hold, and which are never opened from its page."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from manifests.folders.reading import read_bytes

#: Suffixes of what a browser or a desktop runs. No command of ours writes one apart from its page.
_RUN = frozenset(
    (
        *(".html", ".htm", ".xhtml", ".xht", ".shtml", ".mht", ".mhtml", ".hta", ".xml", ".xsl", ".xslt", ".rdf"),
        *(".js", ".mjs", ".cjs", ".wasm", ".swf", ".svgz", ".pdf"),
        *(".desktop", ".url", ".webloc", ".lnk", ".command"),
    )
)
_SVG = ".svg"
#: What the figures consist of.
_ELEMENTS = frozenset(
    {
        *("svg", "g", "defs", "path", "use", "text", "tspan", "title", "desc", "rect", "line", "polyline", "polygon"),
        *("circle", "ellipse", "clipPath", "style", "metadata", "RDF", "Work", "type", "format", "creator", "Agent"),
        *("date", "image", "linearGradient", "stop", "marker", "pattern", "symbol"),
    }
)
_REFERENCE = re.compile(r"url\(\s*['\"]?(?!#)|@import|expression\(|javascript:|\\\\", re.IGNORECASE)
_MARKUP = re.compile(rb"<!ENTITY|<!ATTLIST|<\?(?!xml )", re.IGNORECASE)
_DATA = "data:image/png;base64,"


def is_active(name: str) -> bool:
    """Return whether a browser might run a file, by its name.

    Args: name: of the file, with its suffix.
    Returns: True for a picture of vectors, too: what is in it decides.
    """
    suffix = PurePosixPath(name.rstrip(". ")).suffix.lower()
    return suffix in _RUN or suffix == _SVG


def active_files(folder: Path, names: Iterable[str]) -> Iterator[str]:
    """Yield the files of a folder that a browser would run; a picture as we draw them is not one.

    Args: folder, names: a finished folder, and the paths of files in it, except those of its page.
    Returns: an iterator over names, and what is wrong with them.
    """
    for name in names:
        if not is_active(name):
            continue
        if PurePosixPath(name).suffix.lower() != _SVG:
            yield f"{name} is a file that a browser runs, which lemur never writes"
        elif (fault := _svg_fault(folder / name)) is not None:
            yield f"{name} is a picture with {fault}, which lemur never draws"


def _svg_fault(path: Path) -> str | None:
    """Return what a picture holds besides drawings; None if there is nothing."""
    try:
        data = read_bytes(path)
        if _MARKUP.search(data):
            return "instructions"
        root = ET.fromstring(data)
    except (OSError, ET.ParseError, ValueError) as error:
        return f"faults ({error})"
    for element in root.iter():
        name = str(element.tag).rpartition("}")[2]
        if name not in _ELEMENTS:
            return f"an element {name}"
        if _REFERENCE.search(element.text or ""):
            return "a reference to elsewhere"
        for key, value in element.attrib.items():
            attribute = key.rpartition("}")[2].lower()
            if attribute.startswith("on"):
                return f"an attribute {attribute}"
            leaves = attribute in ("href", "src", "base") and not value.startswith(("#", _DATA))
            if _REFERENCE.search(value) or leaves:
                return "a reference to elsewhere"
    return None
