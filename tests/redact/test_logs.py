"""Log records are redacted whoever writes them and wherever they go."""

import io
import logging
from collections.abc import Iterator

import pytest

from agentops.errors import PolicyError
from agentops.redact import FAILED, Redactor, redacted_logs

REDACTOR = Redactor(b"k" * 32, ["the-process-secret"])


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a handler with a plain formatter writes; it is there before the records are redacted."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logging.getLogger("some.library").addHandler(handler)
    yield text
    logging.getLogger("some.library").removeHandler(handler)


def test_arguments_messages_and_tracebacks_are_redacted_and_the_rest_stays(written: io.StringIO) -> None:
    log = logging.getLogger("some.library")
    with redacted_logs(lambda: REDACTOR):
        log.warning("mail to %s failed %d times", "ann@corp.test", 3)
        log.error("plain line")
        try:
            raise ValueError("no such card: 4111 1111 1111 1111 of a\u200bnn@corp.test, the-process-secret")
        except ValueError:
            log.exception("failed")
    said = written.getvalue()
    assert "WARNING some.library mail to <EMAIL:" in said
    assert "> failed 3 times\nERROR some.library plain line\n" in said
    assert "ValueError: no such card: <CARD:" in said
    for secret in ("ann@", "corp.test", "4111", "the-process-secret"):
        assert secret not in said


def test_a_record_that_cannot_be_redacted_names_only_its_place(written: io.StringIO) -> None:
    def missing() -> Redactor:
        raise PolicyError("redaction.toml is broken")

    with redacted_logs(missing):
        logging.getLogger("some.library").warning("ann@corp.test")
    with redacted_logs(lambda: REDACTOR):
        logging.getLogger("some.library").warning("%d", "ann@corp.test")
    assert written.getvalue().count(f"WARNING some.library {FAILED} at some.library:") == 2
    assert "ann" not in written.getvalue()


def test_a_message_is_one_line(written: io.StringIO) -> None:
    with redacted_logs(lambda: REDACTOR):
        logging.getLogger("some.library").warning("said %s", "no\r\nERROR agentops all is lost\x1b[2J\u2028x")
    assert written.getvalue() == "WARNING some.library said no\\r\\nERROR agentops all is lost\\x1b[2J\\u2028x\n"


def test_it_ends_with_the_block_also_when_blocks_overlap(written: io.StringIO) -> None:
    before = logging.getLogRecordFactory()
    with redacted_logs(lambda: REDACTOR), redacted_logs(lambda: REDACTOR):
        logging.getLogger("some.library").warning("ann@corp.test")
    assert logging.getLogRecordFactory() is before
    logging.getLogger("some.library").warning("bob@corp.test")
    assert "ann@" not in written.getvalue()
    assert "bob@" in written.getvalue()
