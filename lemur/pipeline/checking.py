"""The last stage: every folder is verified, and that the run trained the network that lies beside it."""

import json
from pathlib import Path

from lemur.pipeline.making import BLOCKS, NETWORK, RUN, SNAPSHOT
from lemur.pipeline.stage import Told
from lemur.pipeline.telling import network_facts, read_record
from lemur_core.files.atomic import atomic_file, sha256_file
from lemur_core.files.errors import UserError
from lemur_core.files.markdown import plural
from manifests.verify import Check, found_check, verify_folder

CHECKS = "checks.json"


def make_checks(jobs: int | None, out: Path) -> None:
    """Verify the extraction, the snapshot and the run, and write what was checked.

    Raises: UserError if a check fails.
    """
    found = {name: verify_folder(out / name, jobs=jobs) for name in (BLOCKS, SNAPSHOT, RUN)}
    found[RUN] = [*found[RUN], check_network(out)]
    for folder, checks in found.items():
        failed = [check for check in checks if not check.ok]
        if failed:
            raise UserError(
                f"{out / folder}: {len(failed)} of {len(checks)} checks failed: {failed[0].name}: {failed[0].detail};"
                " run again with --force"
            )
    rows = [{"folder": name, "check": c.name, "detail": c.detail} for name, checks in found.items() for c in checks]
    with atomic_file(out / CHECKS) as part:
        part.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def check_network(out: Path) -> Check:
    """The network beside the run is what was trained, and its blocks are those that the record names."""
    record, facts = read_record(out), network_facts(out)
    wrong = []
    if sha256_file(out / NETWORK) != record.code_sha256:
        wrong.append(f"{NETWORK} is not the network of the record")
    if [part.model_dump(mode="json") for part in record.ingredients] != facts["ingredients"]:
        wrong.append("its blocks are not those of the record")
    return found_check(NETWORK, wrong, f"is what was trained, with {plural(len(record.ingredients), 'found block')}")


def tell_checks(out: Path) -> Told:
    """How many checks hold."""
    rows = json.loads((out / CHECKS).read_text(encoding="utf-8"))
    folders = list(dict.fromkeys(row["folder"] for row in rows))
    return Told({"checks": len(rows), "folders": folders}, f"{len(rows)} checks hold: {', '.join(folders)}")
