"""What each stage's outputs hold, read from the outputs themselves."""

import json
from pathlib import Path
from typing import Any

from lemur.pipeline.making import BLOCKS, NETWORK_FACTS, RUN, SNAPSHOT
from lemur.pipeline.stage import Told
from lemur_core.files.markdown import plural
from manifests.manifest import read_manifest
from manifests.records import TrainingRecord

RECORD = "record.json"


def tell_blocks(out: Path) -> Told:
    """How far the classes came."""
    counts = read_manifest(out / BLOCKS).counts
    reached = counts["reached"]
    found = {"classes": counts["blocks"], "executed": reached["executed"], "backward": reached["backward"]}
    told = f"{plural(found['classes'], 'class', 'classes')}: {found['executed']:,} execute, {found['backward']:,} learn"
    return Told(found, told)


def tell_snapshot(out: Path) -> Told:
    """What was kept, and the conversations about it."""
    counts = read_manifest(out / SNAPSHOT).counts
    found = {"rows": counts["rows"]["input"], "kept": counts["rows"]["kept"]}
    text = f"{found['kept']:,} of {counts['codes']:,} codes kept"
    if "chat" in counts:
        found["conversations"] = counts["chat"]["rows"]
        text += f", {plural(found['conversations'], 'conversation')}"
    return Told({**found, "codes": counts["codes"]}, text)


def tell_network(out: Path) -> Told:
    """Which blocks the network is made of."""
    facts = network_facts(out)
    blocks = [part["block"] for part in facts["ingredients"]]
    return Told({"name": facts["name"], "blocks": blocks}, f"{facts['name']}, {plural(len(blocks), 'found block')}")


def tell_run(out: Path) -> Told:
    """What the short training run came to; its data and how short it was stand beside the accuracy."""
    record = read_record(out)
    names = ("name", "data", "seed", "epochs", "train_images", "val_accuracy", "test_accuracy")
    images = f"{plural(record.epochs, 'epoch')} of {record.train_images:,} images"
    test = "–" if record.test_accuracy is None else f"{100 * record.test_accuracy:.1f} %"
    return Told({name: getattr(record, name) for name in names}, f"{test} of the test images, short run: {images}")


def network_facts(out: Path) -> dict[str, Any]:
    """Name, hyperparameters and blocks of the network."""
    facts: dict[str, Any] = json.loads((out / NETWORK_FACTS).read_text(encoding="utf-8"))
    return facts


def read_record(out: Path) -> TrainingRecord:
    """The record of the training run."""
    return TrainingRecord.model_validate_json((out / RUN / RECORD).read_text(encoding="utf-8"))
