"""Facts from metadata: name, version, licence, requirements."""

import pytest

from extract.sources.metadata import Facts, is_text, read_facts

MIT = b"Permission is hereby granted, free of charge, to any person obtaining a copy\nto deal in the Software without restriction\nThe above copyright notice and this permission notice shall be"
METADATA = b"""Metadata-Version: 2.1
Name: Pack_age
Version: 1.2
License: BSD
Classifier: License :: OSI Approved :: MIT License
Requires-Dist: torch (>=1.7)
Requires-Dist: pytest ; extra == 'test'

Requires-Dist: not a header, but the description
"""


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"x-1.2.dist-info/METADATA": METADATA},
            Facts("Pack_age", "1.2", "MIT", ("torch (>=1.7)", "pytest ; extra == 'test'")),
        ),
        (
            {"PKG-INFO": METADATA.partition(b"License")[0], "LICENSE": MIT},
            Facts("Pack_age", "1.2", "MIT", ()),
        ),
        (
            {"x.egg-info/requires.txt": b"numpy>=1\nyaml\n\n[all]\ntorch\n", "LICENSE.md": b"All rights reserved."},
            Facts("", "", "NOASSERTION", ("numpy>=1", "yaml")),
        ),
        (
            {"pyproject.toml": b'[project]\ndependencies = ["torch>=2", "?"]', "requirements.txt": b"numpy"},
            Facts("", "", "NOASSERTION", ("torch>=2",)),
        ),
        (
            {"requirements.txt": b"# pip install\n-r more.txt\ntorch>=1.5,!=1.6 # newer\ngit+https://x/y\n\nnumpy"},
            Facts("", "", "NOASSERTION", ("torch!=1.6,>=1.5", "numpy")),
        ),
        (
            {"requirements.txt": b"-r requirements/runtime.txt", "requirements/runtime.txt": b"numpy"},
            Facts("", "", "NOASSERTION", ("numpy",)),
        ),
        ({"pyproject.toml": b"not = [toml", "LICENSE": b"\xff\xfe"}, Facts("", "", "NOASSERTION", ())),
        ({"pyproject.toml": b"project = 3"}, Facts("", "", "NOASSERTION", ())),
        ({}, Facts("", "", "NOASSERTION", ())),
    ],
)
def test_facts(texts: dict[str, bytes], expected: Facts) -> None:
    assert read_facts(texts) == expected


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("LICENSE", True),
        ("LICENCE.txt", True),
        ("LICENSE-APACHE", True),
        ("COPYING.LESSER", True),
        ("UNLICENSE", True),
        ("license.py", False),
        ("licenses", False),
        ("sub/LICENSE", False),
        ("x-1.dist-info/METADATA", True),
        ("x-1.dist-info/licenses/LICENSE", True),
        ("x-1.dist-info/RECORD", False),
        ("sub/x-1.dist-info/METADATA", False),
        ("PKG-INFO", True),
        ("x.egg-info/requires.txt", True),
        ("pyproject.toml", True),
        ("sub/pyproject.toml", False),
        ("requirements.txt", True),
        ("requirements/runtime.txt", True),
        ("requirements/tests.txt", False),
    ],
)
def test_texts_to_read(path: str, wanted: bool) -> None:
    assert is_text(path) is wanted
