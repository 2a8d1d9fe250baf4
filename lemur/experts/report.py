"""The results of an evaluation, as tables."""

from collections.abc import Mapping
from typing import Any

from extract.model.results import wilson
from lemur.experts.domains.settings import GENERAL
from lemur.experts.evaluate import ARMS
from lemur_core.files.markdown import percent, table


def table_lines(counts: Mapping[str, Any]) -> list[str]:
    """Return one table: accuracy by method and domain, with 95 % Wilson intervals over all, and token counts."""
    scores = counts["scores"]
    domains = [*dict.fromkeys(domain for own in scores.values() for domain in own if domain not in ("all", GENERAL))]
    head = ["answered by", "all domains", "95 %", *domains, GENERAL, "tokens"]
    rows = []
    for arm, own in scores.items():
        every = own.get("all")
        low, high = wilson(every["correct"], every["questions"]) if every else (0.0, 1.0)
        rows.append(
            [
                arm,
                percent(every["correct"], every["questions"]) if every else "",
                f"{low:.1%} to {high:.1%}" if every else "",
                *(percent(own[d]["correct"], own[d]["questions"]) if d in own else "" for d in (*domains, GENERAL)),
                f"{every['tokens']:.1f}" if every else "",
            ]
        )
    return table(head, rows)


def report_text(counts: Mapping[str, Any]) -> str:
    """Return the report of one evaluation."""
    findings = counts["found"]
    names = list(findings["routing"])
    routing = [["question as asked", *(f"{findings['routing'][name]:.1%}" for name in names)]]
    routing += [["class name alone", *(f"{findings['routing_by_name_alone'][name]:.1%}" for name in names)]]
    growth = [
        [
            step["added"],
            *(f"{step['accuracy'][name]:.1%}" if name in step["accuracy"] else "" for name in names),
            str(step["rerouted"]),
            "bit-equal" if step["oracle_equal"] else "changed",
        ]
        for step in findings["growth"]
    ]
    exact = "the same, bit for bit" if findings["general_exact"] else "CHANGED"
    lines = [
        "# Domain experts: what no projector saw",
        "",
        "Questions about held-out blocks in wordings that no training saw; the commonest answers of the relations"
        f" would be right on {counts['majority']:.1%}. The general set: facts that the base was trained on, in those"
        " other wordings.",
        "",
        *table_lines(counts),
        *(f"- {arm}: {text}" for arm, text in ARMS.items() if arm in counts["scores"]),
        "",
        "## Routing",
        "",
        *table(["routed right", *names], routing),
        "Domains added one by one; rerouted are questions of those before, and of the general set:",
        "",
        *table(["added", *names, "rerouted", "oracle answers of those before"], growth),
        "## Unchanged",
        "",
        f"Weights of the base, and its scores on the general set without injection: {exact}."
        f" Injected are {findings['slots']} of its input vectors a question, however large a domain is.",
    ]
    return "\n".join(lines) + "\n"
