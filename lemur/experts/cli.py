"""`lemur experts train` and `lemur experts ask`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from lemur_core.files import Json
from lemur_core.files.errors import UsageError
from manifests.options.shared import ForceOption, JsonOption

app = typer.Typer(
    name="experts",
    no_args_is_help=True,
    help="Inject domain knowledge into a frozen LLM as a single token.",
)


@app.command()
def train(
    settings: Annotated[Path, typer.Argument(metavar="SETTINGS", help="TOML.")],
    domains: Annotated[
        list[str] | None, typer.Option("--domain", metavar="NAME", help="Only this domain (repeatable; default: all).")
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train an expert for each domain and the codebook, build the router, and evaluate; what is there stays as it is.

    Examples:
      lemur experts train experts.toml
      lemur experts train experts.toml --domain timm
    """
    from lemur.experts.facts import load_settings
    from manifests.folders.manifest import read_manifest

    loaded = load_settings(settings)
    from lemur.experts.injection import Workspace  # loads torch

    folder = Workspace(loaded, force).train(domains or ())
    report = folder / "report.md"
    print(json.dumps(read_manifest(folder).counts, indent=2) if as_json else f"{report.read_text('utf-8')}-> {report}")


@app.command()
def ask(
    folder: Annotated[Path, typer.Option("--in", metavar="DIR", help="The folder of `lemur experts train`.")],
    question: Annotated[str | None, typer.Argument(metavar="QUESTION")] = None,
    questions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON Lines with a `question` each; a `domain` is compared.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer questions: each one's domain by the router, and the base model's answer with and without the token.

    Examples:
      lemur experts ask "lines of timm SEModule ?" --in experts
    """
    if (question is None) == (questions is None):
        raise UsageError("pass a QUESTION, or --questions FILE")
    from lemur.experts.facts import read_questions

    rows: list[Json] = [{"question": question}] if questions is None else read_questions(questions)
    from lemur.experts.injection import answer_questions  # loads torch

    answers = answer_questions(folder, [row["question"] for row in rows])
    known = [row["domain"] == one["routed"] for row, one in zip(rows, answers, strict=True) if "domain" in row]
    if as_json:
        told = [row | one for row, one in zip(rows, answers, strict=True)]
        print(json.dumps({"answers": told, "routed": {"right": sum(known), "of": len(known)}}, indent=2))
        return
    for one in answers:
        print(f"{one['answer']}\n  domain   {one['routed']} ({one['cosines']})\n  without  {one['without']}")
    if known:
        print(f"routed right: {sum(known)} of {len(known)}")
