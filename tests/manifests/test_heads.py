"""What a file's head says of its license: in SPDX, in the words of notices, in restrictions; and what only looks like it."""

from hypothesis import given
from hypothesis import strategies as st

from manifests.provenance.licenses import (
    NOASSERTION,
    HeadLicense,
    combine_licenses,
    is_permissive,
    license_of_code,
    read_head,
)
from tests.builders.suites import table

BODY = "\nimport torch\n\n\nclass Net(torch.nn.Module):\n    pass\n"
GNU = """This program is free software: you can redistribute it and/or modify
it under the terms of the GNU {}General Public License as published by
the Free Software Foundation, either version {} of the License, or
(at your option) any later version."""
BSD = """Copyright (c) 2020 Jane Doe. All rights reserved.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:
1. Redistributions of source code must retain the above copyright notice.
2. Redistributions in binary form must reproduce the above copyright notice.
3. Neither the name of the copyright holder nor the names of its contributors may be used to endorse or promote products
derived from this software without specific prior written permission."""
MIT = """Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal in the Software without restriction

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software."""
APACHE = """Copyright 2021 The Team. All rights reserved.
Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS."""


def comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.split("\n"))


def docstring(text: str) -> str:
    return f'"""A network.\n\n{text}\n"""\n'


#: Says where the license is, or keeps the rights that the license of the source grants.


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


def test_lines_of_spdx() -> None:
    code = '# SPDX-License-Identifier: MIT\nx = 1\n    #SPDX-License-Identifier:  GPL-3.0-only \ny = "SPDX-License-Identifier: Z"'
    assert read_head(code).licenses == ("MIT", "GPL-3.0-only")
    assert read_head('"""A net.\r\n\r\nSPDX-License-Identifier: MIT\r\n"""\r\n').licenses == ("MIT",)
    assert read_head("'''SPDX-License-Identifier: AGPL-3.0-only'''\n").licenses == ("AGPL-3.0-only",)


@given(st.text(alphabet="#'\"\n licenseMITGPLv3=_:classdef@", max_size=200))
def test_any_text_is_read(text: str) -> None:
    own = read_head(text).licenses
    assert license_of_code(text, "MIT", in_source=True) == (combine_licenses({*own, "MIT"}) if own else None)
