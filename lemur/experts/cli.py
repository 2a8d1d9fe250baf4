"""`lemur experts`: data, adapt, align, route, evaluate, answer. Each reads one file of settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lemur.experts.stages import House

app = typer.Typer(
    name="experts",
    no_args_is_help=True,
    help="Private knowledge as one token: an expert a domain, a projector, a router without training.",
)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="Settings, YAML or TOML.", show_default=False)]
_Domains = Annotated[
    list[str] | None, typer.Option("--domain", metavar="NAME", help="Only this one (repeatable); default: all.")
]
_Base = Annotated[str | None, typer.Option(metavar="MODEL", help="A real base: a folder, or a name on the Hub.")]
_Expert = Annotated[str | None, typer.Option(metavar="MODEL", help="What experts start from: a folder, or a name.")]
_Seed = Annotated[int | None, typer.Option(metavar="N", min=0, help="In place of the file's.")]
_Out = Annotated[Path | None, typer.Option(metavar="DIR", help="In place of the file's.")]
_Force = Annotated[bool, typer.Option("--force", help="Make anew what was made with other settings.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]


@app.command()
def data(file: _File, out: _Out = None, seed: _Seed = None, force: _Force = False, as_json: _Json = False) -> None:
    """Make the facts that are asked for, from the extraction folders that the file names."""
    from lemur.experts.command import make_data

    print(make_data(_house(file, out, seed, None, None, force), as_json=as_json))


@app.command()
def adapt(
    file: _File,
    domains: _Domains = None,
    base: _Base = None,
    expert: _Expert = None,
    out: _Out = None,
    seed: _Seed = None,
    force: _Force = False,
) -> None:
    """Stage I: adapt an expert to each domain; first the tiny base on the general set, where no real one is named."""
    from lemur.experts.command import adapt as run

    print(run(_house(file, out, seed, base, expert, force), domains or ()))


@app.command()
def align(
    file: _File,
    domains: _Domains = None,
    base: _Base = None,
    expert: _Expert = None,
    out: _Out = None,
    seed: _Seed = None,
    force: _Force = False,
) -> None:
    """Stage II: align a projector of each domain, base and expert frozen, by the likelihood of the answers."""
    from lemur.experts.command import align as run

    print(run(_house(file, out, seed, base, expert, force), domains or ()))


@app.command()
def route(
    file: _File,
    domains: _Domains = None,
    questions: Annotated[
        Path | None,
        typer.Option(metavar="FILE.jsonl", help="Route these, a `question` a line; with `domain`, how many go right."),
    ] = None,
    base: _Base = None,
    out: _Out = None,
    seed: _Seed = None,
    force: _Force = False,
) -> None:
    """Make the prototypes of each domain and of the general set, and route questions by them."""
    from lemur.experts.command import route as run

    print(run(_house(file, out, seed, base, None, force), domains or (), questions))


@app.command()
def evaluate(
    file: _File,
    base: _Base = None,
    expert: _Expert = None,
    out: _Out = None,
    seed: _Seed = None,
    force: _Force = False,
    as_json: _Json = False,
) -> None:
    """Answer what no projector saw, in every way: injected, routed, retrieved, tuned, and the controls."""
    from lemur.experts.command import evaluate as run

    print(run(_house(file, out, seed, base, expert, force), as_json=as_json))


@app.command()
def answer(
    file: _File,
    question: Annotated[str, typer.Argument(metavar="QUESTION", show_default=False)],
    domain: Annotated[str | None, typer.Option(metavar="NAME", help="Of this one, in place of the router's.")] = None,
    base: _Base = None,
    expert: _Expert = None,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """Answer one question: the domain that it is routed to, and what the base says with and without its token."""
    from lemur.experts.command import answer as run

    print(run(_house(file, out, None, base, expert, False), question, domain, as_json=as_json))


def _house(
    file: Path, out: Path | None, seed: int | None, base: str | None, expert: str | None, force: bool
) -> "House":
    from lemur.experts.domains.settings import load_settings
    from lemur.experts.stages import House

    settings = load_settings(file, seed=seed, base__model=base, expert__model=expert)
    if out is not None:
        settings = settings.model_copy(update={"out": out})
    return House(settings, force)
