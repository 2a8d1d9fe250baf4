"""Records of training runs, of synthesis and of domain experts."""

from typing import Literal

from pydantic import Field

from manifests.records import common
from manifests.records.common import JsonObject, Line, Ratio, Record, Seconds, Sha256


class Ingredient(Record):
    """One block in an assembled network."""

    slot: str = Field(min_length=1, description="place in the recipe, for example attention")
    block: common.BlockId
    source: common.Source
    path: common.SourcePath
    swhid: common.Swhid
    license: Line = Field(description="SPDX expression of all its parts")
    code_sha256: Sha256 = Field(description="SHA-256 of the file that was used, UTF-8")


class TrainingRecord(Record):
    """One training run, whatever its outcome: network, data, recipe and results."""

    name: Line = Field(min_length=1, description="of the network, as LEMUR would register it")
    status: Literal["ok", "diverged", "out_of_memory", "timeout", "error"] = Field(
        description="ok, or how the run ended"
    )
    error: str | None = Field(description="why the status is not ok, in one line")
    code_sha256: Sha256 = Field(description="SHA-256 of the network's file, UTF-8")
    ingredients: tuple[Ingredient, ...] = Field(description="blocks of an assembled network; empty for other networks")
    recipe: JsonObject = Field(
        description="the whole recipe, JSON with sorted keys; model and slots null for other networks"
    )
    recipe_sha256: Sha256 = Field(description="SHA-256 of that JSON")
    prm: JsonObject = Field(description="hyperparameters of the network's constructor, a JSON object")
    seed: int = Field(ge=0, description="of initialization and all random draws")
    data: str = Field(description="which images: cifar-10, cifar-10 (JPEG copy, harder), synthetic (smoke test only)")
    data_sha256: Sha256 = Field(description="digest of the decoded images and labels")
    train_images: int = Field(ge=0, description="number of training images")
    epochs: int = Field(ge=0, description="whole epochs trained")
    steps: int = Field(ge=0, description="optimizer steps taken")
    parameters: int | None = Field(ge=0, description="elements of all parameters; null if it was not constructed")
    images_seen: int | None = Field(default=None, ge=0, description="by the network in training, each time it sees one")
    flop: int | None = Field(
        default=None, ge=0, description="of all forward and backward passes of training, by torch.utils.flop_counter"
    )
    train_loss: float | None = Field(description="mean over the last epoch, augmented images", allow_inf_nan=False)
    val_accuracy: Ratio | None = Field(description="on held-out training images; null if none were held out")
    test_accuracy: Ratio | None = Field(description="on the test images, read once after the last epoch")
    train_seconds: Seconds = Field(description="of the steps, including data loading; without warm-up and evaluation")
    data_seconds: Seconds = Field(description="part of train_seconds spent waiting for data")
    peak_bytes: int | None = Field(ge=0, description="peak resident set size of the training process")
    device: str = Field(description="kind, model, threads")
    precision: Literal["float32", "bfloat16"] = Field(description="of the forward pass")
    torch: str = Field(description="release of torch")
    torchvision: str = Field(description="release of torchvision")


class SynthesisAttempt(Record):
    """One answer of a language model, or why there is none, and the checks that its code passed."""

    model: str = Field(min_length=1, description="name of the language model")
    attempt: int = Field(ge=0, description="its number in the run")
    round: int = Field(ge=0, description="0, plus one for each answer to an error")
    block: Line = Field(description="the requested block, as in the table of blocks")
    goal: str = Field(description="the text of --goal, in every prompt")
    prompt: str = Field(description="the messages, JSON")
    answer: str | None = Field(description="the model's answer; null if there is none")
    finish: str | None = Field(description="why the answer ended, as the model reports: stop, length")
    prompt_tokens: int | None = Field(ge=0, description="as counted by the model")
    answer_tokens: int | None = Field(ge=0, description="as counted by the model")
    sampling: str = Field(description="sampling parameters, JSON")
    seed: int = Field(description="of sampling")
    passed: tuple[str, ...] = Field(description="checks that the code passed, in order")
    failed: str | None = Field(description="the check that it failed; null for an accepted network")
    error: str | None = Field(description="the complete error")
    facts: JsonObject = Field(description="whether its block is the same, and the nearest known network, JSON")
    code: str | None = Field(description="the file in the answer; null if there is none")
    code_sha256: Sha256 | None = Field(description="SHA-256 of code, UTF-8")
    nn: Line | None = Field(description="name of the accepted network")


class Synthesized(Record):
    """One accepted network; the first nine columns are those of the LEMUR API, without results: it was not trained."""

    nn: Line = Field(min_length=1, description="name of the network")
    nn_code: common.NetworkCode
    task: str = Field(description="for example img-classification")
    dataset: str = Field(description="for example cifar-10")
    metric: str = Field(description="for example acc")
    epoch: int | None = Field(description="null: it was not trained")
    accuracy: Ratio | None = Field(description="null")
    duration: float | None = Field(description="null")
    prm: str = Field(description="hyperparameters of its proof, a JSON object")
    id: common.CodeId
    model: str = Field(description="name of the language model that wrote it")
    attempt: int = Field(ge=0, description="its attempt in the table of attempts")
    round: int = Field(ge=0, description="its round there")
    block: Line = Field(description="the block whose spec it was written from")
    block_code: Sha256 = Field(description="SHA-256 of the file of this block, which the model did not see")
    graph: Sha256 = Field(description="what it computes (G0)")
    graph_widths: Sha256 = Field(description="identity of the computation, ignoring widths (G1)")
    license: Line = Field(description="SPDX expression stated by the user, else NOASSERTION")


class ExpertFact(Record):
    """One fact about a block that a domain expert should know."""

    id: str = Field(min_length=1, description="BLOCK#RELATION")
    domain: str = Field(description="domain of the block, or general")
    block: common.BlockId
    name: Line = Field(description="of the class, as used in questions")
    package: Line = Field(description="package name used in questions")
    relation: str = Field(description="what is stated: lines, parameters, operations or submodules")
    answer: str = Field(description="the nearest mark on the relation's scale")
    value: int = Field(ge=0, description="the exact value")
    asked: bool = Field(
        description="false if its answer is too frequent in the domain: used for training, never as a question"
    )
    held: bool = Field(description="of a held-out block, which no prototype sees")
    code_sha256: Sha256 = Field(description="SHA-256 of the block's file, UTF-8")


class ExpertAnswer(Record):
    """The answer of one arm to one question."""

    id: str = Field(min_length=1, description="of the fact")
    arm: str = Field(description="the method, as in the report")
    domain: str = Field(description="domain of the question, or general")
    block: common.BlockId
    relation: str = Field(description="as in the table of facts")
    question: str = Field(description="the text of the question")
    routed: str | None = Field(description="the domain whose token was injected; null if none was")
    expected: str = Field(description="the right answer")
    answer: str = Field(description="the answer that was given")
    correct: bool = Field(description="answer and expected are equal")
    tokens: int = Field(ge=0, description="input tokens of the base model: the prompt with injected content")
    code_sha256: Sha256 = Field(description="SHA-256 of the block's file, UTF-8")
