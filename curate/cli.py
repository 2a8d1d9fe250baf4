"""The commands of curation: they parse, call and print. Heavy imports wait for the command that needs them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from curate.model.options import CurateOptions
from manifests.in_tasks import Division
from manifests.parameters import RuntimeOption, takes_options

if TYPE_CHECKING:
    from manifests.folders.manifest import Manifest

app = typer.Typer()
_PANEL = "Curate: LEMUR records in, a snapshot out"

_SOURCE = (
    r"lemur\[@VERSION], lemur-db\[@VERSION], installed, a .parquet/.jsonl/.csv/.db/.zst file, a folder of .py files, or"
    " hf://datasets/OWNER/NAME."
)
_SOURCES = f"{_SOURCE} Also a folder of blocks (records block-ID). Several are read in their order."

SourceArg = Annotated[str, typer.Argument(metavar="SOURCE", help=_SOURCE, show_default=False)]
SourcesArg = Annotated[list[str], typer.Argument(metavar="SOURCE", help=_SOURCES, show_default=False)]
FolderArg = Annotated[Path, typer.Argument(metavar="DIR", help="A finished folder.", show_default=False)]
OutOption = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write.", show_default=False)]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace DIR when it exists.")]
JobsOption = Annotated[int | None, typer.Option("--jobs", min=1, help="Worker processes; default: all cores.")]
ParentsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--against",
        metavar="SNAPSHOT",
        help="For a delta: the folders that it extends; default: next to it (repeatable).",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]


@app.command(rich_help_panel=_PANEL)
@takes_options
def curate(
    *,
    source: SourcesArg,
    out: OutOption,
    options: CurateOptions,
    against: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="SNAPSHOT", help="Write a delta that adds to this snapshot (repeatable).", show_default=False
        ),
    ] = None,
    origins: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="An extraction: say which codes are from its repositories, and under which licences (repeatable).",
            show_default=False,
        ),
    ] = None,
    division: Division,
    jobs: JobsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Deduplicate, split and explain a corpus of network codes."""
    folders: dict[str, Any] = {"against": against or (), "origins": origins or (), "force": force}
    if division.executor is None:
        from curate.interface import curate as run

        manifest = run(source, out=out, options=options, jobs=jobs, progress=True, **folders).manifest
    else:
        from curate.cluster.command import curate_in_tasks
        from curate.sources import open_sources
        from lemur_core.files.atomic import check_free

        opened = open_sources(source)
        check_free(out, force=force)
        tasks, workers, work = division.resolve(out)
        result = curate_in_tasks(
            opened, source, out, options, division.executor, tasks=tasks, workers=workers, work=work, **folders
        )
        if result is None:
            return
        manifest = result
    _print_summary(out, manifest, as_json=as_json)


@app.command(rich_help_panel=_PANEL)
def explain(
    folder: FolderArg,
    name_or_id: Annotated[str, typer.Argument(metavar="NAME_OR_ID", help="A network's name, or 6 digits of its id.")],
    graph: Annotated[
        Path | None, typer.Option("--graph", metavar="FILE.svg", help="Also draw what it computes.", show_default=False)
    ] = None,
    against: ParentsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain why one record was kept or removed, with a diff to its canonical record."""
    from curate.folder.explain import draw_graph
    from curate.folder.explain import explain as run

    explanation = run(folder, name_or_id, against or ())
    if graph is not None:
        drawn = draw_graph(explanation, graph)
        explanation.lines.append(drawn)
        explanation.facts["drawn"] = str(graph)
    print(json.dumps(explanation.facts, indent=2) if as_json else "\n".join(explanation.lines))


@app.command(rich_help_panel=_PANEL)
def novel(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="Python files, each a LEMUR network or a module.", show_default=False),
    ],
    against: Annotated[
        list[Path],
        typer.Option("--against", metavar="DIR", help="A snapshot or an extraction (repeatable).", show_default=False),
    ],
    task: Annotated[str, typer.Option(help="Whose inputs the networks are traced with.")] = "img-classification",
    prm: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Hyperparameters; default: usual ones, then those of the nearest records."),
    ] = None,
    runtime: RuntimeOption = None,
    jobs: JobsOption = None,
    unsafe_no_sandbox: Annotated[
        bool, typer.Option("--unsafe-no-sandbox", help="Run networks without a sandbox. Only for code you trust.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Is a network new? Its nearest records and blocks. Exit 0: all files are novel; 3: one is known; 1: failed."""
    from curate.published.novel import novel as run

    novelty = run(files, against, task=task, prm=prm, jobs=jobs, unsafe=unsafe_no_sandbox, runtime=tuple(runtime or ()))
    print(json.dumps(novelty.facts, indent=2) if as_json else "\n".join(novelty.lines))
    if novelty.known:
        raise typer.Exit(3)


@app.command(rich_help_panel=_PANEL)
def sensitivity(
    source: SourceArg,
    out: OutOption,
    lexical: Annotated[list[float] | None, typer.Option(help="Lexical thresholds (repeatable).")] = None,
    structural: Annotated[
        list[str] | None, typer.Option(help="Structural thresholds, or off for none (repeatable).")
    ] = None,
    jobs: JobsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Kept counts over a grid of lexical and structural thresholds."""
    from curate.run.sensitivity import LEXICAL_GRID, STRUCTURAL_GRID, parse_threshold
    from curate.run.sensitivity import sensitivity as run
    from curate.sources import open_source

    manifest = run(
        open_source(source),
        out,
        lexical=lexical or LEXICAL_GRID,
        structural=[parse_threshold(text) for text in structural] if structural else STRUCTURAL_GRID,
        jobs=jobs,
        force=force,
    )
    if as_json:
        _print_json(out, manifest)
    else:
        print((out / "report.md").read_text(encoding="utf-8"))


def _print_json(out: Path, manifest: "Manifest") -> None:
    facts: dict[str, Any] = manifest.model_dump(include={"kind", "parameters", "counts", "details", "measured"})
    print(json.dumps({"out": str(out), **facts}))


def _print_summary(out: Path, manifest: "Manifest", *, as_json: bool) -> None:
    if as_json:
        _print_json(out, manifest)
        return
    from lemur_core.files.markdown import plural

    counts, rows = manifest.counts, manifest.counts["rows"]
    names = (
        plural(rows["input"], "row"),
        plural(counts["networks"], "network"),
        plural(counts["codes"], "distinct code"),
    )
    print(f"{names[0]} of {names[1]}, {names[2]}")
    for stage in _STAGES:
        if rows[stage]:
            print(f"  {stage:<10} {rows[stage]:>9,}  {_STAGES[stage]}")
    splits = ", ".join(f"{count:,} {split}" for split, count in counts["splits"].items())
    print(f"  {'kept':<10} {rows['kept']:>9,}  {splits}")
    if "graphs" in counts:
        graphs = counts["graphs"]
        text = f"of the kept traced, each a computation of its own; {graphs['distinct_up_to_widths']:,} up to widths"
        print(f"  {'graphs':<10} {graphs['kept']:>9,}  {text}")
    elif manifest.parameters["profile"] == "strict":
        print(f"  {'graphs':<10} {'-':>9}  not compared: two of the kept may compute the same")
    if "runs" in counts:
        runs = counts["runs"]
        text = f"of the kept run; {runs['fails']:,} do not, {runs['not_tried']:,} could not be tried"
        print(f"  {'runs':<10} {runs['runs']:>9,}  {text}")
    if "origins" in counts:
        kept_origins = counts["origins"]["kept"]
        licenses = ", ".join(f"{count:,} {name}" for name, count in kept_origins["licenses"].items())
        print(f"  {'origins':<10} {kept_origins['codes']:>9,}  of the kept are from a repository: {licenses or 'none'}")
    if "chat" in counts:
        chat = counts["chat"]
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in chat["kinds"].items())
        print(f"  {'chat':<10} {chat['rows']:>9,}  conversations: {kinds}; {chat['dropped']:,} not made")
    for note in manifest.details.get("notes", ()):
        print(f"  note: {note}")
    measured = manifest.measured
    print(f"{out}: {measured.seconds:.1f} s, {measured.peak_memory_bytes / 2**20:,.0f} MiB; see report.md")


_STAGES = {
    "invalid": "rows without usable code",
    "filter": "rows left out by an option",
    "repeat": "further rows of the same network",
    "exact": "same code, or the same but for comments and layout",
    "lexical": "near-duplicates by tokens",
    "structural": "near-duplicates by structure",
    "graph": "other texts of the same computation",
    "leak": "would tie published splits together",
}
