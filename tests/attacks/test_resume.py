"""Attempts to carry a waiting request on without the right person's yes."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops.errors import AgentopsError, PolicyError, StoreError
from agentops.runtime import new_request
from agentops.workspace import local_principal

from .trapped import CUSTOMER, LARGE, Trapped

Within = Callable[..., Any]


async def asked(desk: Trapped, id: str = "request-1", user: str = CUSTOMER, text: str = LARGE) -> Any:
    """A refund that waits for finance."""
    answer = await desk.runtime.ask(new_request(text, local_principal(desk.workspace, user), f"s-{id}", id=id))
    assert answer.status == "pending"
    return answer


async def granted(desk: Trapped, answer: Any) -> None:
    finance = local_principal(desk.workspace, "E-1", ("finance",))
    desk.workspace.approvals.decide(answer.approvals[0], True, finance, "looks right")


def test_a_resume_without_a_decision_waits_on(within: Within) -> None:
    async def attack(desk: Trapped) -> tuple[str, int]:
        before = desk.count("refunds")
        await asked(desk)
        answer = await desk.runtime.resume("request-1")
        return answer.status, desk.count("refunds") - before

    assert within(attack, "refund_request") == ("pending", 0)


@pytest.mark.parametrize("id", ["request-2", "", "request-1' OR '1'='1", "../request-1", "request-%", "REQUEST-1"])
def test_an_id_that_does_not_wait_is_refused(within: Within, id: str) -> None:
    async def attack(desk: Trapped) -> None:
        await asked(desk)
        with pytest.raises(PolicyError, match="no request"):
            await desk.runtime.resume(id)

    within(attack, "refund_request")


def test_another_user_or_tenant_who_asks_under_the_same_id_gets_nothing_of_it(within: Within) -> None:
    """The id alone gives no right: the approval is bound to the user, and so are the tools' own rows."""

    async def attack(desk: Trapped) -> tuple[list[str], int]:
        before = desk.count("refunds")
        await granted(desk, await asked(desk))
        mallory = local_principal(desk.workspace, "C-1001")
        answer = await desk.runtime.ask(new_request(LARGE, mallory, "s-request-1", id="request-1"))
        return [result.status for result in answer.results], desk.count("refunds") - before

    statuses, paid = within(attack, "refund_request")
    assert paid == 0
    assert "ok" not in statuses


def _edit(home: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(home / "threads.db") as database:
        changed = database.execute(statement, values).rowcount
    assert changed


def test_a_waiting_request_put_in_anothers_place_is_refused(within: Within, trap: Path) -> None:
    """Whoever edits threads.db can put one sealed request where another is expected: the approved one, say."""

    async def ask(desk: Trapped) -> int:
        await asked(desk, "request-1")
        await granted(desk, await asked(desk, "request-2"))
        return desk.count("refunds")

    async def resume(desk: Trapped) -> int:
        for id in ("request-1", "request-2"):
            with pytest.raises(StoreError, match="another one"):
                await desk.runtime.resume(id)
        return desk.count("refunds")

    before = within(ask, "refund_request")
    for old, new in (("request-1", "swapping"), ("request-2", "request-1"), ("swapping", "request-2")):
        _edit(trap / ".agentops", "UPDATE checkpoints SET thread_id = ? WHERE thread_id = ?", new, old)
    assert within(resume, "refund_request") == before


def test_a_finished_request_that_is_put_back_is_not_done_twice(within: Within, trap: Path) -> None:
    home = trap / ".agentops"

    async def ask(desk: Trapped) -> None:
        await granted(desk, await asked(desk))

    async def resume(desk: Trapped) -> tuple[list[str], int]:
        answer = await desk.runtime.resume("request-1")
        return [result.status for result in answer.results if result.tool == "create_refund"], desk.count("refunds")

    within(ask, "refund_request")
    kept = {file.name: file.read_bytes() for file in home.glob("threads.db*")}
    statuses, paid = within(resume, "refund_request")
    assert statuses == ["ok"]
    for name, data in kept.items():
        (home / name).write_bytes(data)
    again, still = within(resume, "refund_request")
    assert again == ["denied"]
    assert still == paid


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE checkpoints SET checkpoint = CAST(substr(checkpoint, 1, length(checkpoint) - 1) || x'00' AS BLOB)",
        "UPDATE checkpoints SET type = 'json', checkpoint = CAST('{}' AS BLOB)",
        "UPDATE checkpoints SET type = 'pickle', checkpoint = x'80049500000000'",
        "UPDATE checkpoints SET type = 'msgpack+none'",
    ],
)
def test_an_edited_thread_is_refused_and_nothing_is_paid(within: Within, trap: Path, statement: str) -> None:
    async def ask(desk: Trapped) -> int:
        await granted(desk, await asked(desk))
        return desk.count("refunds")

    async def resume(desk: Trapped) -> int:
        with pytest.raises(AgentopsError):
            await desk.runtime.resume("request-1")
        return desk.count("refunds")

    before = within(ask, "refund_request")
    _edit(trap / ".agentops", statement)
    assert within(resume, "refund_request") == before
