"""`--require-runs`: the selection over the records that run.

Records are tried as they are about to be kept. Those that do not run are left out, as by a filter, and the selection is
made again without them, until everything kept runs. A record that was not tried has no part in the outcome: it is near
a kept one that outranks it. So the kept set is what the selection over all running records would be, all guarantees
hold for it, and only a small part of a corpus is ever run.
"""

from collections.abc import Callable

from curate.corpus import Corpus
from curate.records import Records, leave_out
from curate.rescue import Rescue
from curate.runs.check import Check
from curate.runs.result import reason_to_leave_out


def choose_running(
    records: Records, corpus: Corpus, choose: Callable[[Records], Rescue], check: Check
) -> tuple[Records, Rescue]:
    """Select until every kept record runs.

    Args:
        choose: the selection; its outcome depends on the records alone.

    Returns: the records that were not left out, and the selection among them.
    """
    while True:
        chosen = choose(records)
        about_to_be_kept = {
            code: records.shown[code] for code, verdict in chosen.verdicts.items() if verdict.stage is None
        }
        reasons = {
            code: reason_to_leave_out(result) for code, result in check(about_to_be_kept).items() if not result.runs
        }
        if not reasons:
            return records, chosen
        records = leave_out(records, corpus, reasons)
