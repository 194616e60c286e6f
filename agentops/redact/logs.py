"""Log records redacted as they are made, whichever logger and handler they go to.

Invariant: while `redacted` is entered, the redactor has seen the message, the exception and the stack of every record
of Python's logging; what cannot be redacted is replaced whole. A message is one line, so that what others said forges
no record. It configures no handler and no level. Attributes added with `extra=`, of which the engine has none, are not
looked at.
"""

import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentops.redact.redactor import FAILED, Redactor

_BREAKS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")


@contextmanager
def redacted(redactor: Callable[[], Redactor]) -> Iterator[None]:
    """Redact every log record of this process until the end of the block.

    Args:
        redactor: gives the redactor when the first record is made.
    """
    before = logging.getLogRecordFactory()

    def make(*args: object, **given: object) -> logging.LogRecord:
        record = before(*args, **given)
        said, record.exc_text, record.stack_info = _safe(record, redactor)
        if said is not None:
            record.msg, record.args = said, ()
        record.exc_info = None  # a formatter prints exc_text; an error collector gets no live values
        return record

    logging.setLogRecordFactory(make)
    try:
        yield
    finally:
        if logging.getLogRecordFactory() is make:  # else another one is inside, and goes on redacting with this one
            logging.setLogRecordFactory(before)


def _safe(record: logging.LogRecord, redactor: Callable[[], Redactor]) -> tuple[str | None, str | None, str | None]:
    """Message (None: as it is), traceback and stack of a record as they may be written."""
    try:
        clean = redactor().text
        raised = record.exc_info[1] if record.exc_info else None
        trace = "".join(traceback.format_exception(raised)).rstrip() if raised is not None else record.exc_text
        said, stack = record.getMessage(), record.stack_info
        shown = _BREAKS.sub(lambda found: repr(found[0])[1:-1], clean(said))
        return None if shown == said else shown, trace and clean(trace), stack and clean(stack)
    except Exception:  # noqa: BLE001 - fail closed: a line less is better than a line with what it should not hold
        return f"{FAILED} at {record.name}:{record.lineno} ({_kind(sys.exc_info()[0])})", None, None


def _kind(raised: type[BaseException] | None) -> str:
    return raised.__name__ if raised is not None else "unknown"
