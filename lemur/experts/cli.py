"""`lemur experts`: data, adapt, align, route, evaluate, answer. Each command reads one settings file."""

from pathlib import Path
from typing import Annotated

import typer

import lemur.experts as package
from manifests.options.help import CommandLine

app = CommandLine(
    name="experts",
    no_args_is_help=True,
    help="Inject domain knowledge into a frozen LLM as a single token.",
)

_File = Annotated[Path, typer.Argument(metavar="FILE", help="Settings file, YAML or TOML.", show_default=False)]
_Domains = Annotated[
    list[str] | None, typer.Option("--domain", metavar="NAME", help="Only this domain (repeatable; default: all).")
]
_Base = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="A base model: a folder, GGUF file, package:NAME, or Hub name."),
]
_Expert = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Initial model of the experts: a folder, or a name.")
]
_Seed = Annotated[int | None, typer.Option(metavar="N", min=0, help="Overrides the value in FILE.")]
_Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Overrides the value in FILE.")]
_Force = Annotated[bool, typer.Option("--force", help="Rebuild stages that were built with other settings.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]


@app.command()
def data(file: _File, out: _Out = None, seed: _Seed = None, force: _Force = False, as_json: _Json = False) -> None:
    """Build the facts for the questions, from the extraction folders that FILE names.

    Examples:
      lemur experts data experts.toml
    """
    workspace = package.command.open_workspace(file, out, seed, None, None, force)
    print(package.command.make_data(workspace, as_json=as_json))


@app.command()
def adapt(
    file: _File,
    domains: _Domains = None,
    base: _Base = None,
    expert: _Expert = None,
    out: _Out = None,
    seed: _Seed = None,
    force: _Force = False,
    as_json: _Json = False,
) -> None:
    """Stage I: adapt an expert to each domain. Without a real base model, train the tiny base first.

    Examples:
      lemur experts adapt experts.toml --domain timm
    """
    workspace = package.command.open_workspace(file, out, seed, base, expert, force)
    print(package.command.adapt(workspace, domains or (), as_json=as_json))


@app.command()
def align(
    file: _File,
    base: _Base = None,
    out: _Out = None,
    seed: _Seed = None,
    force: _Force = False,
    as_json: _Json = False,
) -> None:
    """Stage II: train vectors that make the frozen base say a number, for all numbers of all domains.

    Examples:
      lemur experts align experts.toml
    """
    workspace = package.command.open_workspace(file, out, seed, base, None, force)
    print(package.command.align(workspace, as_json=as_json))


@app.command()
def route(
    file: _File,
    domains: _Domains = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Questions to route, one `question` per line; with `domain`, report the accuracy.",
        ),
    ] = None,
    base: _Base = None,
    out: _Out = None,
    seed: _Seed = None,
    force: _Force = False,
    as_json: _Json = False,
) -> None:
    """Build the prototypes of each domain and of the general set, and route questions with them.

    Examples:
      lemur experts route experts.toml --questions questions.jsonl
    """
    workspace = package.command.open_workspace(file, out, seed, base, None, force)
    print(package.command.route(workspace, domains or (), questions, as_json=as_json))


@app.command()
def evaluate(
    file: _File,
    domains: _Domains = None,
    base: _Base = None,
    expert: _Expert = None,
    out: _Out = None,
    seed: _Seed = None,
    force: _Force = False,
    as_json: _Json = False,
) -> None:
    """Answer the held-out questions with every method: injected, routed, retrieved, and the controls.

    Examples:
      lemur experts evaluate experts.toml
    """
    workspace = package.command.open_workspace(file, out, seed, base, expert, force)
    print(package.command.evaluate(workspace, domains or (), as_json=as_json))


@app.command()
def answer(
    file: _File,
    question: Annotated[str, typer.Argument(metavar="QUESTION", show_default=False)],
    domain: Annotated[str | None, typer.Option(metavar="NAME", help="Use this domain instead of the router's.")] = None,
    base: _Base = None,
    expert: _Expert = None,
    out: _Out = None,
    as_json: _Json = False,
) -> None:
    """Answer one question: its domain by the router, and the base model's answer with and without the token.

    Examples:
      lemur experts answer experts.toml "lines of timm SEModule ?"
    """
    workspace = package.command.open_workspace(file, out, None, base, expert, False)
    print(package.command.answer(workspace, question, domain, as_json=as_json))
