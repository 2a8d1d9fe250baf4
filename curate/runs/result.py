"""What a check of runs says about one record."""

from dataclasses import dataclass

_MARK = "(--require-runs):"


@dataclass(frozen=True, slots=True)
class RunResult:
    """Whether a network runs; None where that could not be tried. `error` starts with its category and a colon."""

    runs: bool | None
    error: str | None = None

    @property
    def category(self) -> str | None:
        """Why it does not run, or why that was not tried, in one short word; None when it runs."""
        return None if self.error is None else category_of(self.error)


def reason_to_leave_out(result: RunResult) -> str:
    """Why `--require-runs` leaves a record out, for its decision."""
    what = "does not run" if result.runs is False else "cannot be tried"
    return f"{what} {_MARK} {result.error}"


def category_left_out(reason: str) -> str | None:
    """The category in such a reason; None for any other reason."""
    _, mark, error = reason.partition(f"{_MARK} ")
    return category_of(error) if mark else None


def category_of(error: str) -> str:
    """The category that an error line starts with."""
    return error.partition(":")[0]
