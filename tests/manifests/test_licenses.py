"""Licenses: read from metadata and texts, unknown where they do not say, permissive only when that is sure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lemur_core.files.errors import UserError
from manifests.provenance.licenses import (
    NOASSERTION,
    HeadLicense,
    combine_licenses,
    find_license,
    is_permissive,
    license_of_code,
    license_of_fields,
    license_of_text,
    notice_lines,
    parse_expression,
    read_head,
)
from tests.builders.suites import table

MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal in the Software without restriction

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software."""
BSD = """Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:
* Redistributions in binary form must reproduce the above copyright notice"""
APACHE = """                                 Apache License
                           Version 2.0, January 2004
   TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION"""
GPL = "                    GNU GENERAL PUBLIC LICENSE\n                       Version {}, June {}\n"
CREATIVE = "Attribution-{} 4.0 International\n=====\nCreative Commons Corporation"

TEXTS = {
    "MIT": MIT,
    "MIT-0": MIT.partition("\n\n")[0] + '\nTHE SOFTWARE IS PROVIDED "AS IS"',
    "BSD-2-Clause": BSD,
    "BSD-3-Clause": BSD + "\nNeither the name of X may be used to endorse or promote products derived from this software",
    "BSD-4-Clause": BSD + "\n3. All advertising materials mentioning features or use of this software must say so."
    "\n4. Neither the name of X may be used to endorse or promote products derived from this software",
    "Apache-2.0": "Copyright 2018 Someone. All rights reserved.\n\n" + APACHE,
    "GPL-2.0": GPL.format(2, 1991) + "Activities other than copying, distribution and modification are not covered",
    "GPL-3.0": GPL.format(3, 2007) + "2. Basic Permissions.\n13. Use with the GNU Affero General Public License.",
    "AGPL-3.0": GPL.format(3, 2007).replace("GENERAL", "AFFERO GENERAL") + "13. Remote Network Interaction; Use with GPL",
    "LGPL-3.0": GPL.format(3, 2007).replace("GENERAL", "LESSER GENERAL")
    + "This version of the GNU Lesser General Public License incorporates\nthe terms and conditions of version 3",
    "LGPL-2.1": "GNU LESSER GENERAL PUBLIC LICENSE\nVersion 2.1, February 1999\na 'work that uses the Library'",
    "MPL-2.0": "Mozilla Public License Version 2.0\n==================================",
    "CC-BY-NC-4.0": CREATIVE.format("NonCommercial"),
    "CC-BY-NC-SA-4.0": CREATIVE.format("NonCommercial-ShareAlike"),
    "CC-BY-SA-4.0": CREATIVE.format("ShareAlike"),
    "CC0-1.0": "Creative Commons Legal Code\n\nCC0 1.0 Universal",
    "ISC": """Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is
        hereby granted, provided that the above copyright notice and this permission notice appear in all copies.""",
    "Unlicense": "This is free and unencumbered software released into the public domain.",
    NOASSERTION: "You may use this software for research, with the permission of its authors.",
}  # fmt: skip


@pytest.mark.parametrize("expected", TEXTS)
def test_texts(expected: str) -> None:
    assert license_of_text(TEXTS[expected]) == expected


@table(__file__, "licenses.md", "Texts of several licences and limited ones", globals())
def test_texts_of_several_licences_and_limited_ones(text: str, expected: str) -> None:
    assert license_of_text(text) == expected
    assert not is_permissive(expected) or expected == "BSD-2-Clause AND MIT"


@table(__file__, "licenses.md", "All at once", globals())
def test_all_at_once(expressions: list[str], expected: str) -> None:
    assert combine_licenses(expressions) == expected
    assert is_permissive(expected) == (bool(expressions) and all(map(is_permissive, expressions)))


def test_what_a_user_states() -> None:
    assert parse_expression("mit and apache-2.0") == "MIT AND Apache-2.0"
    with pytest.raises(UserError, match=r"--license free for all: not an SPDX expression; for example MIT"):
        parse_expression("free for all")


@table(__file__, "licenses.md", "Fields", globals())
def test_fields(expression: str, field: str, classifiers: list[str], expected: str) -> None:
    assert license_of_fields(expression, field, classifiers) == expected


def test_what_is_stated_comes_before_texts() -> None:
    assert find_license("MIT", [APACHE]) == "MIT"
    assert find_license(NOASSERTION, [MIT, APACHE, MIT, "?"]) == "Apache-2.0 AND MIT"
    assert find_license(NOASSERTION, ["?"]) == find_license(NOASSERTION, []) == NOASSERTION
    for text in (
        "For research only, non-commercial.",
        "CC BY-NC 4.0",
        "Business Source License 1.1",
        "Do not distribute.",
    ):
        assert find_license(NOASSERTION, [MIT, text]) == NOASSERTION, "beside a license that permits it"


def test_is_permissive() -> None:
    for expression in ("MIT", "apache-2.0", "MIT OR GPL-3.0 AND AGPL-3.0", "Apache-2.0 WITH LLVM-exception"):
        assert is_permissive(expression) is True, expression
    limited = ("GPL-3.0", "AGPL-3.0-or-later", "LGPL-3.0", "CC-BY-NC-4.0", "GPL-2.0 WITH Classpath-exception-2.0")
    unknown = ("MIT WITH Classpath-exception-2.0", "LicenseRef-Mine", NOASSERTION, "", "MIT AND", "no such thing")
    for expression in (*limited, *unknown):
        assert is_permissive(expression) is False, expression


expressions = st.recursive(
    st.sampled_from(["MIT", "BSD-3-Clause", "GPL-3.0-only", "CC-BY-NC-4.0"]),
    lambda inner: st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda parts: f"({' '.join(parts)})"),
    max_leaves=6,
)


@given(expressions)
def test_is_permissive_as_python_reads_it(expression: str) -> None:
    truth = expression.replace("AND", "and").replace("OR", "or")
    for name in ("GPL-3.0-only", "CC-BY-NC-4.0"):
        truth = truth.replace(name, "False")
    assert is_permissive(expression) is eval(truth.replace("MIT", "True").replace("BSD-3-Clause", "True"))


@given(st.lists(expressions, min_size=1))
def test_combined_they_are_permissive_if_each_is(each: list[str]) -> None:
    assert is_permissive(combine_licenses(each)) is all(map(is_permissive, each))


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    assert isinstance(license_of_text(text), str)
    assert isinstance(is_permissive(text), bool)
    assert license_of_fields(text, text, [text])


# The head of a file: SPDX, the words of notices, restrictions; and what only looks like them.

BODY = "\nimport torch\n\n\nclass Net(torch.nn.Module):\n    pass\n"
GNU = """This program is free software: you can redistribute it and/or modify
it under the terms of the GNU {}General Public License as published by
the Free Software Foundation, either version {} of the License, or
(at your option) any later version."""
BSD_NOTICE = """Copyright (c) 2020 Jane Doe. All rights reserved.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:
1. Redistributions of source code must retain the above copyright notice.
2. Redistributions in binary form must reproduce the above copyright notice.
3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse or promote products
derived from this software without specific prior written permission."""
APACHE_NOTICE = """Copyright 2021 The Team. All rights reserved.
Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS."""


def comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.split("\n"))


def docstring(text: str) -> str:
    return f'"""A network.\n\n{text}\n"""\n'


@table(__file__, "heads.md", "What must not leave", globals())
def test_what_must_not_leave(expected: str, head: str) -> None:
    said = combine_licenses(read_head(head + BODY).licenses)
    assert said == expected
    assert not is_permissive(said)
    for code in (head + BODY, (head + BODY).replace("\n", "\r\n")):
        for stated, in_source in ((None, False), (None, True), ("MIT", False)):
            assert not is_permissive(license_of_code(code, "MIT", stated, in_source=in_source) or "MIT")


@table(__file__, "heads.md", "What may leave", globals())
def test_what_may_leave(expected: str, head: str) -> None:
    assert read_head(head + BODY) == HeadLicense((expected,))
    assert is_permissive(license_of_code(head + BODY, "BSD-2-Clause") or "")


@table(__file__, "heads.md", "What is said elsewhere counts where it can be read", globals())
def test_what_is_said_elsewhere_counts_where_it_can_be_read(head: str) -> None:
    assert read_head(head + BODY) == HeadLicense(refers=True)
    assert license_of_code(head + BODY, "MIT") == NOASSERTION
    assert license_of_code(head + BODY, "MIT", in_source=True) is None
    assert license_of_code(head + BODY, "MIT", "MIT") is None, "the user says it"


@table(__file__, "heads.md", "What says nothing", globals())
def test_what_says_nothing(head: str) -> None:
    assert read_head(head + BODY) == HeadLicense()


def test_the_lines_of_a_head_that_state_a_copyright() -> None:
    head = f'"""By / Copyright 2021 A\x07\n* (c) B\n"""\n# {"©" * 201}\n{comment(BSD)}# OR COPYRIGHT OWNER.\n# (c) B\n'
    stated = ("# Notice:  By / Copyright 2021 A\\x07", "# Notice:  (c) B", f"# Notice:  {'©' * 200} …")
    assert notice_lines(head + BODY + "# © E\n") == stated
    text = "# (b) Add\n# (c) Drop\n# (C) Copyright: E SPDX-license-identifier: X"
    assert notice_lines(text) == ("# Notice:  (C) Copyright: E",)


@given(st.text(alphabet="#'\"\n licenseMITGPLv3=_:classdef@", max_size=200))
def test_any_head_is_read(text: str) -> None:
    own = read_head(text).licenses
    assert license_of_code(text, "MIT", in_source=True) == (combine_licenses({*own, "MIT"}) if own else None)
