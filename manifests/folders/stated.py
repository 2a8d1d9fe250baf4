"""The parameters, counts and details that the manifest of each kind of folder states, as far as a reader uses them.

Every one of them may be missing, because an older release did not state it; one that is there has its type, and is
null only where its type says so.
"""

from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from lemur_core.files import Json
from manifests.records import Ratio, Sha256

_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Counts = dict[str, _Count]
_Figure = Annotated[float, Field(allow_inf_nan=False)]
_Threshold = Annotated[float, Field(gt=0, le=1)]
_Bands = Annotated[int, Field(ge=1, le=4096)]
_Text = str | None


class _Stated(BaseModel):
    """Base of what a manifest states: exact types, further keys allowed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow")


class _Rows(_Stated):
    """Rows of the source by stage, of which `input` is the sum."""

    __pydantic_extra__: _Counts
    input: _Count


class _Source(_Stated):
    """A source of blocks as it was fetched."""

    name: str
    version: _Text = None
    origin: _Text = None
    digest: _Text = None
    swhid: _Text = None
    license: _Text = None


def _require(**types: Any) -> Any:
    """Return the type of an object that has all of these keys."""
    fields: Any = {name: (type_, ...) for name, type_ in types.items()}
    return create_model("Stated", __base__=_Stated, **fields)


def _allow(**types: Any) -> Any:
    """Return the type of an object that may have these keys. The default is not validated: null is not allowed."""
    fields: Any = {name: (type_, None) for name, type_ in types.items()}
    return create_model("Stated", __base__=_Stated, **fields)


def _list_of(item: Any) -> Any:
    return GenericAlias(list, (item,))


def _dict_of(value: Any) -> Any:
    return GenericAlias(dict, (str, value))


_GROUPS = _dict_of(_require(before=_Count, kept=_Count))  # codes by prefix or family
_CHAT = _require(rows=_Count, tokens=_Count, kinds=_Counts, dropped=_Count)
_SHARED = _allow(license=str)  # of all conversations, or networks
_RUNS = _allow(runs=_Count)

#: By kind, the types of parameters, counts and details. Of another kind, nothing is read but what every manifest has.
STATED: dict[str, dict[str, Any]] = {
    "snapshot": {
        "parameters": _allow(
            source=_Text, profile=_Text, graph=_Text, license=_Text, seed=int, check_runs=bool, require_runs=bool,
            lexical_threshold=_Threshold, structural_threshold=_Threshold, tokens=Literal["abstract", "literal"],
            namespace=Literal["torch"] | None, chat=bool, against=list[Sha256],
        ),
        "counts": _allow(
            rows=_Rows, networks=_Count, names=_Count, codes=_Count, splits=_Counts, prefixes=_GROUPS, families=_GROUPS,
            graphs=_require(kept=_Count), chat=_CHAT, runs=Json, licenses=Json,
        ),
        "details": _allow(
            license=str, lsh=_require(bands=_Bands, rows=_Bands, recall=Ratio),
            against=_require(bands=_Bands, rows=_Bands), origins=_allow(threshold=Ratio), chat=_SHARED,
            licensed_by_row=_Count, withheld=list[Json], notes=list[str],
        ),
    },
    "extraction": {
        "parameters": _allow(corpus=_Text, seed=int, chat=Json | None),
        "counts": _allow(reached=_Counts, graphs=_allow(blocks=_Count), chat=_CHAT),
        "details": _allow(
            sources=list[_Source], withheld=_list_of(_allow(blocks=_Count)), notes=list[str], unopened=dict[str, str],
        ),
    },
    "sensitivity": {
        "parameters": _allow(source=str),
        "counts": _allow(
            codes=_Count,
            grid=_list_of(
                _require(
                    lexical_threshold=_Figure, structural_threshold=_Figure | None, kept=_Count, exact=_Count,
                    lexical=_Count, structural=_Count
                )
            ),
        ),
    },
    "ablation": {"parameters": _allow(data=str, variants=Json, seeds=list[int]), "counts": _RUNS},
    "search": {"parameters": _allow(data=str), "counts": _RUNS},
    "synthesis": {"counts": _dict_of(_require(attempts=_Count, accepted=_Count)), "details": _SHARED},
    "experts-evaluation": {
        "counts": _allow(
            scores=dict[str, dict[str, dict[str, _Figure]]], majority=Ratio, found=_require(general_exact=bool)
        )
    },
}  # fmt: skip
