"""The way itself: stage after stage, each left as it is while nothing in front of it changed and its output is whole.

Killed at any point, the finished stages stay finished: a stage is forgotten before it is made, and noted once its
outputs are in place. What a killed stage had worked out lies in the caches, or in the partial folder of a training run.
"""

import errno
import time
from collections.abc import Sequence
from pathlib import Path

from lemur.pipeline.digests import digest_code, digest_json, digest_outputs, digest_versions
from lemur.pipeline.stage import Done, Stage
from lemur.pipeline.state import StageRecord, State, own_folder, read_state, remove, write_state
from lemur_core.files.errors import RetryableError, UserError
from lemur_core.files.progress import note

_OF_THE_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)


def run_stages(stages: Sequence[Stage], out: Path, *, force: bool = False) -> list[Done]:
    """Bring every stage up to date, in the given order, parents first.

    Args: force: make all of them again.
    Returns: what became of each.
    Raises: UserError that names the stage.
    """
    with own_folder(out):
        state = read_state(out, anew=force)
        write_state(out, state)  # from here on the folder is known for one of ours
        made: dict[str, str] = {}
        done = []
        for place, stage in enumerate(stages, 1):
            inputs = _inputs(stage, made)
            found = digest_outputs(out, stage.outputs)
            why = _why(state.stages.get(stage.name), inputs, found, force=force)
            note(f"stage {place} of {len(stages)}, {stage.name}: {why or 'nothing changed'}")
            started = time.monotonic()
            if why is not None:
                damaged = stage.name in state.stages and found != state.stages[stage.name].output
                state = _without(state, stage)
                write_state(out, state)
                if damaged or (force and stage.resumes):
                    for name in stage.outputs:
                        remove(out / name)
                found = _make(stage, out)
                state = State(stages=state.stages | {stage.name: StageRecord(inputs=inputs, output=found)})
                write_state(out, state)
            assert found is not None
            made[stage.name] = found
            seconds = time.monotonic() - started if why is not None else 0.0
            done.append(Done(stage, why, round(seconds, 3), stage.tell(out)))
    return done


def _inputs(stage: Stage, made: dict[str, str]) -> dict[str, str]:
    """Digests of all that decides what comes out; a change of any of them makes the stage anew."""
    own = {
        "parameters": digest_json(dict(stage.parameters)),
        "code": digest_code(stage.packages),
        "versions": digest_versions(),
    }
    return own | {name: made[name] for name in stage.parents}


def _why(record: StageRecord | None, inputs: dict[str, str], found: str | None, *, force: bool) -> str | None:
    """Why a stage must be made, in a few words; None when it need not."""
    if force:
        return "made again, as --force asks"
    if record is None:
        return "not made yet"
    names = [*inputs, *(name for name in record.inputs if name not in inputs)]
    changed = [name for name in names if record.inputs.get(name) != inputs.get(name)]
    if changed:
        return f"made again: {', '.join(changed)} changed"
    if found is None:
        return "made again: its output is gone"
    return None if found == record.output else "made again: its output was changed"


def _without(state: State, stage: Stage) -> State:
    return State(stages={name: record for name, record in state.stages.items() if name != stage.name})


def in_stage(name: str, error: UserError) -> UserError:
    """The same error, with the stage that it comes from."""
    kind = RetryableError if isinstance(error, RetryableError) else UserError
    return kind(f"stage {name}: {error}")


def _make(stage: Stage, out: Path) -> str:
    try:
        stage.make(out)
    except UserError as error:
        raise in_stage(stage.name, error) from error
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _OF_THE_PLACE:
            where = f"{error.filename}: " if error.filename else ""
            said = f"stage {stage.name}: {where}{error.strerror}; mend that, and the same command goes on"
            raise UserError(said) from error
        note(f"stage {stage.name}: not finished; the same command goes on from here")
        raise
    found = digest_outputs(out, stage.outputs)
    assert found is not None, f"stage {stage.name} has not written {stage.outputs}"
    return found
