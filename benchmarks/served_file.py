"""A model as a file for llama.cpp, fine-tuned or as it is: `python -m benchmarks.served_file FILE.gguf --windows 0`.

    python -m benchmarks.served_file FILE.gguf --snapshot SNAPSHOT --windows 44

As `benchmarks.teaching` does, LoRA learns the conversations of a snapshot of `lemur curate`, here of all its
codes, and is merged. All else in the file is as in the GGUF file of the model; matrices become Q8_0, vectors stay.

Claims, asserted: the file reads back as the same weights, but for half a step of their 8 bits; asked the same,
llama.cpp's likeliest five tokens have the log-probabilities of transformers, but for 1.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from benchmarks.served import MODEL, serve
from benchmarks.teaching import HERE, run_there, train
from benchmarks.teaching_corpus import read_snapshot
from benchmarks.teaching_questions import Settings, ask, make_windows
from lemur.experts.injection import find_model, load_model

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INSIDE = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_STEP = 1 / 200  # of the largest weight of a row; more than half of 1/127, as scales have 16 bits
_BEST = 5  # tokens
_APART = 1.0  # in log-probability; llama.cpp rounds what goes into a matrix, too
_GREEDY = 40
_QUESTIONS = ("What is the capital of France?", "Write a Python function that returns the sum of a list.")


def main(argv: Sequence[str] | None = None) -> None:
    """Write the file where trl is installed, then ask it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="FILE.gguf")
    parser.add_argument("--model", default=MODEL, help="with a GGUF file of a Llama")
    parser.add_argument("--snapshot", type=Path)
    parser.add_argument("--windows", type=int, default=44, help="steps of 768 tokens; 0: the model as it is")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    if given.windows and given.snapshot is None:
        parser.error("--snapshot: needed to fine-tune")
    answers = given.out.with_suffix(".json")
    if HERE in os.environ:
        answers.write_text(json.dumps(make(given)), encoding="utf-8")
        return
    run_there("benchmarks.served_file", sys.argv[1:] if argv is None else argv)
    with serve(str(given.out)) as url:
        for asked, greedy, scores in json.loads(answers.read_text(encoding="utf-8")):
            body = {"prompt": asked, "n_predict": _GREEDY, "temperature": 0, "n_probs": _BEST, "return_tokens": True}
            reply = httpx2.post(url.replace("/v1", "/completion"), json=body, timeout=300, trust_env=False).json()
            pairs = enumerate(zip(greedy, reply["tokens"], strict=False))
            same = next((at for at, (mine, theirs) in pairs if mine != theirs), len(greedy))
            best = reply["completion_probabilities"][0]["top_logprobs"]
            apart = max(abs(token["logprob"] - scores[token["id"]]) for token in best)
            print(
                f"after {len(asked)} tokens: {same} of {len(greedy)} greedy ones; scores {apart:.2f} apart", flush=True
            )
            assert apart < _APART


def make(given: argparse.Namespace) -> list[list[list[Any]]]:
    """Write the file. Returns: tokens of questions, what transformers says then, and its scores of the first token."""
    tokenizer, model = load_model(given.model, "--model")
    questions = list(_QUESTIONS)
    if given.windows:
        texts, settings = read_snapshot(given.snapshot), Settings(windows=given.windows)
        model, losses = train(
            model, tokenizer, make_windows(texts, tokenizer, settings, given.seed), settings, given.seed
        )
        model = model.merge_and_unload()
        questions += [ask(text.code) for text in texts[:: len(texts) // 3]]
        print(f"losses {losses[:3]} to {losses[-3:]}", flush=True)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    source, gguf = find_model(given.model, "--model")
    assert gguf is not None, "the model is a GGUF file"
    write(weights, Path(source, gguf), given.out)
    read = load_model(str(given.out), "FILE.gguf")[1].state_dict()
    for name, value in weights.items():
        step = np.abs(value).max(-1, keepdims=True) * (_STEP if value.ndim > 1 else 0)
        assert (np.abs(read[name].numpy() - value) <= step).all(), name
    found = []
    for question in questions:
        turn = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        said = model.generate(**ids, max_new_tokens=_GREEDY, do_sample=False)[0].tolist()
        size = ids["input_ids"].shape[1]
        scores = model(**ids).logits[0, -1].detach().log_softmax(-1).tolist()
        found.append([said[:size], said[size:], scores])
    return found


def write(weights: Mapping[str, Any], like: Path, out: Path) -> None:
    """Write weights, named as transformers names those of a Llama; all else is as in another file."""
    gguf: Any = importlib.import_module("gguf")
    original = gguf.GGUFReader(like)
    own = gguf.GGUFWriter(out, original.fields["general.architecture"].contents())
    for name, field in original.fields.items():
        # The writer states these itself.
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            kind, *inner = field.types
            own.add_key_value(name, field.contents(), kind, inner[0] if inner else None)
    own.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    counts = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    for tensor in original.tensors:
        *block, part, end = tensor.name.split(".")
        name = f"model.layers.{block[1]}.{_INSIDE[part]}.{end}" if block else f"{_OUTSIDE[part]}.{end}"
        values = weights[name]
        if part in counts:
            values = turn(values, original.fields[counts[part]].contents())
        kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else gguf.GGMLQuantizationType.Q8_0
        own.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    own.write_header_to_file()
    own.write_kv_data_to_file()
    own.write_tensors_to_file()
    own.close()


def turn(values: Any, heads: int) -> Any:
    """Rows of queries or keys as llama.cpp rotates them: neighbors, where transformers rotates halves of a head."""
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


if __name__ == "__main__":
    main()
