"""What a file's head says of its license: in SPDX, in the words of notices, in restrictions; and what only looks like it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.provenance.heads import HeadLicense, license_of_code, read_head
from manifests.provenance.licenses import NOASSERTION, combine_licenses, is_permissive

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


#: Not permissive, by what it is: each must not leave.
REFUSED = {
    "GPL-3.0": [
        comment(GNU.format("", 3)),
        docstring(GNU.format("", 3)),
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n" + comment(GNU.format("", 3)),
        "# License: GPL v3\n",
        "# Licence: GPLv3\n",
        "# This file is released under the GPL license.\n",
        "# GNU GPL\n",
        docstring("ResNet with pretrained weights\nLicense: GPL v3"),
        "# Loads its weights.\n# Released under the GPL license\n",
        "# The code and the weights are under the GPL license\n",
        '__license__ = "GPL"\n',
        "__license__ = 'GPLv3'\n",
        "import os\nimport torch\n" + docstring("License: GNU General Public License v3"),
        'import torch\n\n"""' + GNU.format("", 3) + '"""\n',
        "import torch  # GPL-3\n",
        "# @license GPL-3.0\n",
    ],
    "GPL-2.0": [comment(GNU.format("", 2)), "# License: GPL-2\n"],
    "AGPL-3.0": [comment(GNU.format("Affero ", 3)), "__license__ = 'AGPL-3.0'\n", "# Ultralytics AGPL-3.0 License\n"],
    "LGPL-2.1": [comment(GNU.format("Lesser ", "2.1")), "# Licensed under the LGPL v2.1\n"],
    "MPL-2.0": [
        comment(
            "This Source Code Form is subject to the terms of the Mozilla Public\nLicense, v. 2.0. If a copy of the MPL"
            "\nwas not distributed with this file, You can obtain one at https://mozilla.org/MPL/2.0/."
        )
    ],
    "EUPL-1.2": ["# Licensed under the EUPL, Version 1.2\n"],
    "SSPL-1.0": ["# Server Side Public License, version 1\n"],
    "BUSL-1.1": ["# Use of this software is governed by the Business Source License\n"],
    "CC-BY-NC-4.0": [
        "# License: CC BY-NC 4.0\n",
        "# CC-BY-NC\n",
        docstring("https://creativecommons.org/licenses/by-nc/4.0/"),
        comment("This source code is licensed under the CC-by-NC license found in the\nLICENSE file in the root directory"),
        docstring("Creative Commons Attribution-NonCommercial 4.0 International"),
    ],
    "CC-BY-ND-4.0": ["# CC BY-ND 4.0\n"],
    "CC-BY-SA-4.0": ["# Shared under CC-BY-SA 4.0\n"],
    "GPL-3.0-only": [
        "# spdx-license-identifier: gpl-3.0-only\n",
        "// SPDX-License-Identifier: GPL-3.0-only\n",
        "; SPDX-License-Identifier: GPL-3.0-only\n",
        "/* SPDX-License-Identifier: GPL-3.0-only */\n",
        ".. SPDX-License-Identifier: GPL-3.0-only\n",
        docstring("/* SPDX-License-Identifier: GPL-3.0-only */"),
        docstring(".. SPDX-License-Identifier: GPL-3.0-only"),
        "#SPDX-License-Identifier:GPL-3.0-only\n",
        "# Copyright 2020 X, SPDX-License-Identifier: GPL-3.0-only\n",
        "import torch  # SPDX-License-Identifier: GPL-3.0-only\n",
        "class A:\n    # SPDX-License-Identifier: GPL-3.0-only\n    pass\n",
    ],
    "GPL-3.0-only AND MIT": ["# SPDX-License-Identifier: MIT\n# SPDX-License-Identifier: GPL-3.0-only\n"],
    "GPL-2.0-only WITH Classpath-exception-2.0": ["# SPDX-License-Identifier: GPL-2.0-only WITH Classpath-exception-2.0\n"],
    "LicenseRef-Proprietary": ["# SPDX-License-Identifier: LicenseRef-Proprietary\n"],
    NOASSERTION: [
        "# SPDX-License-Identifier: whatever I like\n",
        "# Proprietary and confidential\n",
        docstring("Unauthorized copying of this file, via any medium, is strictly prohibited."),
        "# For non-commercial use only.\n",
        "# This code is for research purposes only.\n",
        "# You may use it for noncommercial purposes.\n" + comment(MIT),
        "# Do not distribute.\n",
        "# ACME internal use only\n",
        "# This code may not be redistributed.\n",
        "# Licensed under the Sapiens2 License.\n",
        "# License: custom\n",
        "__license__ = 'Proprietary'\n",
        "# Released under the NVIDIA Source Code License\n",
        docstring("All code in this file is available under a research only license."),
        comment("No part of this may be reproduced without the prior written permission of ACME."),
    ],
}  # fmt: skip
#: Permissive, by what it is: each may leave.
PERMITTED = {
    "Apache-2.0": [
        comment(APACHE),
        docstring(APACHE),
        "# License: Apache 2.0\n",
        "# This code is released under the Apache 2.0 license.\n",
        "# SPDX-License-Identifier: Apache-2.0\n# Copyright (c) 2024, ACME. All rights reserved.\n",
        "# SPDX-License-Identifier: apache-2.0 */\n",
    ],
    "BSD-3-Clause": [
        comment(BSD),
        docstring(BSD),
        "# License: BSD 3-Clause\n",
        "# License: BSD\n",
        comment(
            "Copyright (c) Facebook, Inc. All rights reserved.\n\nThis source code is licensed under the BSD-style license"
            " found in the\nLICENSE file in the root directory of this source tree."
        ),
    ],
    "MIT": [
        comment(MIT),
        "# Copyright X. All rights reserved.\n# MIT License\n" + comment(MIT),
        "# License: MIT\n",
        '__license__ = "MIT"\n',
        "# Licensed under the MIT License [see LICENSE for details]\n",
        docstring("This code is available under the MIT license.\nThe pretrained weights are CC-BY-NC 4.0, though."),
        docstring("The license is MIT. This code is under the MIT license. However, weight files ARE under a non-commercial license"),
    ],
    "MIT OR GPL-3.0-only": ["# SPDX-License-Identifier: MIT OR GPL-3.0-only\n", "# spdx-license-identifier: mit or gpl-3.0-only\n"],
    "(MIT OR GPL-2.0-only) AND Apache-2.0": ["# SPDX-License-Identifier: (MIT OR GPL-2.0-only) AND Apache-2.0\n"],
    "Apache-2.0 WITH LLVM-exception": ["# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception\n"],
    "CC0-1.0": ["# License: CC0\n"],
}  # fmt: skip
#: Says where the license is, or keeps the rights that the license of the source grants.
REFERRED = [
    "# Copyright (c) OpenMMLab. All rights reserved.\n",
    "# See LICENSE for details.\n",
    "# License: see the LICENSE file\n",
    comment("This source code is licensed under the license found in the\nLICENSE file in the root directory."),
    docstring("All Rights Reserved."),
]
SILENT = [
    "",
    "# Copyright (c) 2020 Jane Doe\n",
    docstring("Implements GELU and a gated unit, as in the paper. The code has no license server."),
    "x = 'GPL'\n",
    "class A:\n    # License: GPL\n    pass\n",
    'y = "SPDX-License-Identifier: GPL-3.0-only"\n',
    "# ported from the paper, not from the GPL code\n",
    "def f():\n    '''Released under the GPL license, says a string of this function.'''\n",
]


def cases(table: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(expected, head) for expected, heads in table.items() for head in heads]


@pytest.mark.parametrize(("expected", "head"), cases(REFUSED))
def test_what_must_not_leave(expected: str, head: str) -> None:
    said = combine_licenses(read_head(head + BODY).licenses)
    assert said == expected
    assert not is_permissive(said)
    for code in (head + BODY, (head + BODY).replace("\n", "\r\n")):
        for stated, in_source in ((None, False), (None, True), ("MIT", False)):
            assert not is_permissive(license_of_code(code, "MIT", stated, in_source=in_source) or "MIT")


@pytest.mark.parametrize(("expected", "head"), cases(PERMITTED))
def test_what_may_leave(expected: str, head: str) -> None:
    assert read_head(head + BODY) == HeadLicense((expected,))
    assert is_permissive(license_of_code(head + BODY, "BSD-2-Clause") or "")


@pytest.mark.parametrize("head", REFERRED)
def test_what_is_said_elsewhere_counts_where_it_can_be_read(head: str) -> None:
    assert read_head(head + BODY) == HeadLicense(refers=True)
    assert license_of_code(head + BODY, "MIT") == NOASSERTION
    assert license_of_code(head + BODY, "MIT", in_source=True) is None
    assert license_of_code(head + BODY, "MIT", "MIT") is None, "the user says it"


@pytest.mark.parametrize("head", SILENT)
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
