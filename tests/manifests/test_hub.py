"""Reading from the Hub: what its client says of retries."""

import logging

import pytest
from huggingface_hub.utils import http_backoff

from lemur_core.files.errors import RetryableError
from manifests.publish.hub import hub_errors

NOBODY = "http://127.0.0.1:9/owner/name"  # the discard port: nothing listens there


def test_retries_of_the_client_are_told_in_one_line(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RetryableError, match=r"^hf://o/n: the Hub cannot be read: .*; go on$"), hub_errors("hf://o/n", "go on"):  # fmt: skip
        http_backoff("HEAD", NOBODY, max_retries=3, base_wait_time=0)
    assert capsys.readouterr().err == "hf://o/n: the Hub does not answer; trying again for half a minute\n"
    assert caplog.records == []


def test_other_warnings_of_the_client_stay(caplog: pytest.LogCaptureFixture) -> None:
    with hub_errors("hf://o/n", "go on"):
        logging.getLogger("huggingface_hub.utils._http").warning("the repository has moved")
    assert [record.message for record in caplog.records] == ["the repository has moved"]
