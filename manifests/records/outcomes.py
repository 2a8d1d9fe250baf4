"""The outcomes of a run that LEMUR stores among its hyperparameters."""

import json
from collections.abc import Mapping

#: What later releases of LEMUR write among the hyperparameters of a run, besides `metric_*`: results, and the load of
#: the machine. Source: `train_n_eval` in `ab/nn/util/Train.py` of nn-dataset 2.2.6, 2.2.8 and 2.2.11
OUTCOMES = frozenset(
    {
        *("duration_seconds", "train_loss", "test_loss", "train_accuracy", "best_accuracy", "best_epoch", "train_stat"),
        *("gradient_norm", "samples_per_second", "lr_now", "cpu_count", "cpu_type", "cpu_usage_percent", "gpu_type"),
        *("total_ram_kb", "occupied_ram_kb", "ram_usage_percent", "gpu_memory_kb", "gpu_total_memory_kb"),
        *("occupied_gpu_memory_kb", "gpu_memory_usage_percent"),
    }
)


def drop_outcomes(prm: Mapping[str, object]) -> dict[str, object]:
    """Return hyperparameters without the outcomes that LEMUR stores among them.

    Args: prm: by name, as a network's constructor takes them.
    Returns: a new dict, in the same order.
    """
    return {name: value for name, value in prm.items() if name not in OUTCOMES and not name.startswith("metric_")}


def split_outcomes(prm: str | None) -> tuple[str | None, str | None]:
    """Split the hyperparameters of a row from the outcomes among them.

    Args: prm: a JSON object; any other text is returned as it is.
    Returns: the hyperparameters, with the same text if no outcome is among them; the outcomes, a JSON object or None.
    """
    if prm is None or not ("metric_" in prm or any(name in prm for name in OUTCOMES)):
        return prm, None
    try:
        values = json.loads(prm)
    except (ValueError, RecursionError):
        return prm, None
    if not isinstance(values, dict):
        return prm, None
    own = drop_outcomes(values)
    outcomes = {name: value for name, value in values.items() if name not in own}
    return (json.dumps(own, sort_keys=True), json.dumps(outcomes, sort_keys=True)) if outcomes else (prm, None)
