"""A result counts only if the entry returned it: not an early exit, not a print, not bytes in a pipe."""

from collections.abc import Callable

import pytest

from lemur_core.sandbox import Outcome, Status

Run = Callable[..., Outcome]


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("_exit", 0, "exited with code 0 before the entry returned: the code, or a thread that it started, called"),
        ("_exit", 3, "exited with code 3 before the entry returned"),
        ("sys.exit", 0, "the code asked the interpreter to exit (SystemExit: 0)"),
        ("atexit", 0, "the code asked the interpreter to exit (SystemExit: 0)"),
        ("thread", 0, "exited with code 0 before the entry returned"),
        ("segfault", 0, "ended by SIGSEGV before the entry returned"),
        ("abort", 0, "ended by SIGABRT before the entry returned"),
        ("kill", 0, "ended by SIGKILL before the entry returned"),
        ("close", 0, "exited with code 0 before the entry returned"),
    ],
)
def test_leaving_early_is_no_result(run: Run, how: str, code: int, message: str) -> None:
    outcome = run("leave", how=how, code=code)
    assert (outcome.status, outcome.value) == (Status.CRASHED, None)
    assert outcome.error.startswith(message)


def test_interrupt_is_an_error(run: Run) -> None:
    outcome = run("leave", how="interrupt")
    assert outcome.status == Status.ERROR
    assert outcome.error.startswith("KeyboardInterrupt")


def test_leftovers_do_not_spoil_a_result(run: Run) -> None:
    outcome = run("harmless_leftovers")
    assert (outcome.status, outcome.value) == (Status.OK, "clean")
    assert outcome.seconds < 5


@pytest.mark.parametrize("leave", [True, False])
def test_forged_result(run: Run, leave: bool) -> None:
    outcome = run("forge", leave=leave)
    assert (outcome.status, outcome.value) == (Status.CRASHED, None)
    assert outcome.error == "something other than the entry wrote to the result channel; nothing counts"
    assert "forged" in outcome.stdout_tail


def test_replaced_functions(run: Run) -> None:
    outcome = run("patch_modules")
    assert outcome.value != "forged"


@pytest.mark.parametrize("kind", ["object", "set"])
def test_value_that_json_cannot_hold(run: Run, kind: str) -> None:
    outcome = run("odd_value", kind=kind)
    assert outcome.status == Status.ERROR
    assert outcome.error.startswith("the entry returned what JSON cannot hold: TypeError")


@pytest.mark.parametrize(
    ("kind", "status", "message"),
    [
        ("value", Status.ERROR, "ValueError: a clear message"),
        ("odd", Status.ERROR, "OddError: (its message cannot be had: RuntimeError)"),
        ("chained", Status.DENIED, "RuntimeError: could not cache"),
        ("recursion", Status.ERROR, "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_exceptions(run: Run, kind: str, status: Status, message: str) -> None:
    outcome = run("fail", kind=kind)
    assert (outcome.status, outcome.value) == (status, None)
    first, *frames = outcome.error.splitlines()
    assert first.startswith(message)
    assert frames[-1].endswith("in fail")
    assert "attacks.py:" in frames[-1]


def test_value_too_deep_to_read(run: Run) -> None:
    outcome = run("nested_value")
    assert (outcome.status, outcome.value) in {(Status.CRASHED, None), (Status.ERROR, None)}
    assert run("double", x=2).value == {"doubled": 4}
