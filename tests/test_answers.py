"""Foreign answers of every guest, whole and mutated: each is an answer of its type, or nonsense; none is a traceback.

A mutation changes one part of a right answer, at a random place: another type, another value, a key more or less, a
packed graph that is none. What is read from it is used as the product uses it.
"""

import contextlib
import copy
import json
import random
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from typing import Any

import pytest
from pydantic import TypeAdapter

from curate.compute import graphs, runs
from curate.folder import chat
from extract import migrate
from extract.proofs import equivalence, rebuild, validate, visit
from lemur.synthesis import confirm
from lemur_core.files.errors import UserError
from lemur_core.graphs.graph import Graph, Node, Ref, TensorType, pack, unpack
from lemur_core.graphs.sizes import Sized
from lemur_core.sandbox import Job, Outcome, Status
from lemur_core.sandbox.cached import CachedSandbox
from lemur_core.sandbox.stage import Reply, SandboxStage
from train import check
from train.compose import candidates

KIND = TensorType("float32", (2, 3))
GRAPH = Graph(
    (
        Node("input", (("number", 0),), (KIND,), "*0"),
        Node("parameter", (), (KIND,), "fc.weight"),
        Node("add", (("input", Ref(0)), ("other", (Ref(1), 2.5)), ("alpha", float("nan"))), (KIND,), "fc"),
    ),
    (Ref(2),),
    ((Ref(1), Ref(2)),),
)
PACKED = pack(GRAPH)
CALL = {"args": ["8", "torch.ones(2)"], "kwargs": {"bias": "True"}}
CASES = [{"inputs": {"x": "float32 2×3"}, "outputs": []}]
OBSERVED = {"parameters": 1, "trainable": 1, "buffers": 0, "layers": {"Linear": 1}, "cases": CASES}
ARGUMENTS = {"init": CALL, "forward": CALL}
SEARCHED = {"level": "backward", "kind": None, "error": None, "arguments": ARGUMENTS, "observed": OBSERVED}
TRACED = {
    **{name: name * 8 for name in ("graph", "graph_widths", "graph_repeats", "initial")},
    "train_error": None,
    "reads_values": False,
    "dead_classes": ["Gate"],
    "unused_parameters": [],
}
NET = TRACED | {"runs": True, "route": "meta", "in_shape": [2, 3], "prm_read": ["lr"], "eval": PACKED, "train": PACKED}
NET |= {"graph_eval": "e", "glue": "g", "weights": "w"}
BLOCK = TRACED | {"route": "meta", "returns": ["tensor"], "hidden": [], "draws": {"eval": []}}
BLOCK |= Sized(GRAPH, GRAPH, {"N": (2, 3)}, None).to_json()

#: Right answers that the type alone does not show.
SAMPLES: dict[str, list[Any]] = {
    validate.EXECUTE.guest: [SEARCHED],
    validate.SEARCH_AND_VISIT.guest: [SEARCHED | {"visit": {"graphs": BLOCK, "uses": {"error": "no"}}}],
    graphs.TRACE.guest: [NET],
    visit.TRACE.guest: [BLOCK],
    visit.VISIT.guest: [{"graphs": BLOCK, "uses": {"error": "no"}}],
}
STAGES: dict[str, SandboxStage[Any]] = {
    stage.guest: stage
    for stage in (
        *(runs.RUN, graphs.TRACE, graphs.MEASURE, chat.MEASURE),
        *(validate.EXECUTE, validate.SEARCH_AND_VISIT, equivalence.SIGN_ORIGINALS),
        *(visit.TRACE, visit.VISIT, rebuild.REBUILD, visit.SIGN),
        *(migrate.IMPORT, migrate.SIGN, confirm.CONFIRM),
        *(candidates.PROBE, candidates.NETWORK, check.CHECK),
    )
}


def use_network_graphs(reply: Reply[Any]) -> None:
    answer = runs.read_answer(reply)
    if isinstance(answer, graphs.NetGraphs):
        for packed in (answer.eval, answer.train or answer.eval):
            Graph.from_json(unpack(packed)).check_references()
        assert graphs.GraphTrace(answer.to_json()).agrees(graphs.GraphTrace(answer.to_json())) == "same"
    else:
        graphs.GraphTrace({"error": answer.fault, "missing": answer.missing}).missing.encode()


def use_check(reply: Reply[Any]) -> None:
    with contextlib.suppress(UserError):  # hyperparameters that a network refuses
        check.build_result("net", "class Net: pass", reply.outcome)


USES: dict[str, Callable[[Reply[Any]], object]] = {
    runs.RUN.guest: lambda reply: getattr(runs.read_answer(reply), "fault", None),
    graphs.TRACE.guest: use_network_graphs,
    visit.TRACE.guest: lambda reply: (
        isinstance(reply.answer, visit.BlockGraphs) and Sized.from_json(reply.answer.to_json()).evaluate()
    ),
    validate.EXECUTE.guest: validate._judge,
    validate.SEARCH_AND_VISIT.guest: validate._judge,
    check.CHECK.guest: use_check,
}


def build_samples(schema: dict[str, Any], definitions: dict[str, Any]) -> list[Any]:
    """Return a right answer for each variant of a JSON schema."""
    if "$ref" in schema:
        return build_samples(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "const" in schema or "enum" in schema:
        return [schema.get("const", schema.get("enum", [None])[0])]
    if "anyOf" in schema:
        return [sample for variant in schema["anyOf"] for sample in build_samples(variant, definitions)]
    match schema.get("type"):
        case "object" if "properties" in schema:
            return [{name: build_samples(part, definitions)[0] for name, part in schema["properties"].items()}]
        case "object":
            parts = schema.get("additionalProperties")
            return [{"name": part} for part in (build_samples(parts, definitions) if isinstance(parts, dict) else [1])]
        case "array" if "prefixItems" in schema:
            return [[build_samples(part, definitions)[0] for part in schema["prefixItems"]]]
        case "array":
            return [[part] for part in build_samples(schema.get("items", {}), definitions)]
    text = "0" * 64 if "[0-9a-f]{64}" in schema.get("pattern", "") else "text"
    return {"string": [text], "integer": [1], "number": [0.5], "boolean": [True], "null": [None]}.get(
        schema.get("type", ""), [{"any": ["thing"]}]
    )


def list_samples(stage: SandboxStage[Any]) -> list[Any]:
    if stage.guest in SAMPLES:
        return SAMPLES[stage.guest]
    schema = TypeAdapter(stage.answer).json_schema()
    return build_samples(schema, schema.get("$defs", {}))


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**200, -(2**63) - 1, 1.5, 1e308, float("nan"), float("-inf")),
    *("", "\0", "\ud800", "a\ud800\n\x1b[31mb", "</script><script>", "|" * 99, "x" * 100_000, "%9", "0…99999999"),
    *("=" + "-" * 5_000 + "N", "=9**9**9**9"),
    *([], {}, [[]], {"": {}}, {"\ud800": "\ud800"}, {"node": 7, "output": 0}, nested(50), nested(101), nested(400)),
    *({"error": "why"}, {"missing": 5}, {"runs": True}, [1, 2, 3], {"float": "1e999"}, {"node": 0, "output": True}),
    b64encode(b"not packed").decode(),
    *(b64encode(zlib.compress(data)).decode() for data in (b" " * 2**25, b"[" * 10_000, b"[1, 2]")),
]


def list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from list_places(part)


def mutate(sample: Any, random: random.Random) -> Any:
    """Return a copy with one part that is odd."""
    whole = [copy.deepcopy(sample)]
    places = list(list_places(whole))
    container, key = random.choice(places)
    part = container[key]
    if part == PACKED and random.random() < 0.7:
        stored = mutate(unpack(part), random)
        container[key] = b64encode(zlib.compress(json.dumps(stored).encode())).decode()
        return whole[0]
    match random.randrange(6):
        case 0 if isinstance(container, dict):
            del container[key]
        case 1 if isinstance(container, dict):
            container[random.choice(["extra", "\ud800", "number", "_"])] = random.choice(ODD)
        case 2 if isinstance(container, list):
            container.append(random.choice([part, *ODD]))
        case 3:
            other = random.choice(places)[0]
            container[key] = None if other is whole else copy.deepcopy(other)
        case _:
            container[key] = random.choice(ODD)
    return whole[0] if whole else None


def read(stage: SandboxStage[Any], value: Any) -> Reply[Any]:
    return stage.read(Outcome("name", Status.OK, value))


def check_reply(guest: str, reply: Reply[Any]) -> None:
    if reply.answer is None:
        assert reply.outcome.status is Status.CRASHED
        assert reply.outcome.error.startswith("invalid answer: ")
        assert len(reply.outcome.error) <= 200
    USES.get(guest, str)(reply)
    text = asdict(reply.answer) if is_dataclass(reply.answer) else str(reply.answer)
    (json.dumps(text, ensure_ascii=False, default=str, allow_nan=False) + reply.outcome.error).encode()
    assert "\0" not in reply.outcome.error


@pytest.mark.parametrize("guest", STAGES)
@pytest.mark.parametrize("count", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_a_right_answer_is_read_and_a_mutated_one_is_an_answer_or_nonsense(guest: str, count: int) -> None:
    generator = random.Random(f"{guest} {count}")
    samples = list_samples(STAGES[guest])
    right = [read(STAGES[guest], sample) for sample in samples]
    assert [reply.outcome.error for reply in right if reply.answer is None] == []
    mutated = [read(STAGES[guest], mutate(generator.choice(samples), generator)) for _ in range(count)]
    for reply in [*right, *mutated]:
        check_reply(guest, reply)
    assert any(reply.answer is None for reply in mutated)


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:30])
def test_an_odd_answer_is_nonsense_on_recall_too(value: Any) -> None:
    """As it may lie in a cache: JSON with whatever JSON in Python may hold."""

    class Kept:
        def recall(self, _key: str) -> bytes:
            return json.dumps(["ok", value, "", False]).encode()

        def remember(self, _key: str, _value: bytes) -> None:
            raise AssertionError("nothing is run")

    with CachedSandbox(Kept()) as box:
        for guest, stage in STAGES.items():
            jobs = [Job("name", guest, {}, stage.limits)]
            (reply,) = stage.run_jobs(box, jobs)
            assert reply.outcome.reused or reply.outcome.error.startswith("invalid answer")
            check_reply(guest, reply)
