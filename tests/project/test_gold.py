"""Gold plans do exactly what their tasks expect: run in a fresh world, they leave its changes and say its facts."""

import re

import pytest

pytestmark = pytest.mark.anyio


def _judgeable(part, rows):
    """Tasks whose truth does not depend on a policy: those that wait for an approval are in test_governed."""
    waits = part("pipelines.support.verify").waits_for_approval
    return [task for task in rows if not waits(task)]


async def test_a_sample_of_gold_plans(part, run_task) -> None:
    rows = _judgeable(part, part("pipelines.support.tasks").generate())[::17]
    assert len(rows) > 250
    await _all_succeed(rows, run_task)


@pytest.mark.slow
async def test_every_gold_plan(part, run_task) -> None:
    await _all_succeed(_judgeable(part, part("pipelines.support.tasks").generate()), run_task)


async def test_must_pass_gold_plans(part, run_task) -> None:
    await _all_succeed([task for task in part("pipelines.support.tasks").tasks("frozen") if task.must_pass], run_task)


async def _all_succeed(rows, run_task) -> None:
    for task in rows:
        _, changes, verdict = await run_task(task)
        assert verdict.success is True, f"{task.id} {task.text!r}: {verdict.evidence}"
        assert sorted(map(str, changes)) == sorted(map(str, task.changes)), task.id


async def test_doing_nothing_never_passes(part, run_task) -> None:
    for task in part("pipelines.support.tasks").tasks("frozen")[::5]:
        _, _, verdict = await run_task(task, 'say ""')
        assert verdict.success is False, task.id


async def test_handing_over_passes_only_where_a_person_is_right(part, run_task) -> None:
    for task in part("pipelines.support.tasks").tasks("frozen")[::7]:
        _, _, verdict = await run_task(task, 'handoff "please"')
        assert verdict.success is (task.labels in (("human_agent",), ("out_of_scope",))), task.id


@pytest.mark.parametrize(
    ("gold", "damaged"),
    [
        (r"= cancel_order\(", "= get_order("),  # the write is left out
        (r"(\w*)f\.refundable_cents", "1"),  # another amount
        (r'= reserve_item\("(SKU-\d{4})", (\d+)\)', r'= reserve_item("\1", 9)'),  # another quantity
        (r"(\w*)o\.email", '"somebody@example.com"'),  # another receiver
        (r'= change_address\("(SO-\d{5})", "', r'= change_address("\1", "Alte '),  # another street
    ],
)
async def test_damaged_plans_fail(part, run_task, gold, damaged) -> None:
    rows = [task for task in part("pipelines.support.tasks").tasks("frozen") if re.search(gold, task.plan)]
    rows = [task for task in rows if task.changes][:8]
    assert len(rows) == 8
    for task in rows:
        _, changes, verdict = await run_task(task, re.sub(gold, damaged, task.plan))
        assert verdict.success is False, f"{task.id}: {changes}"


@pytest.mark.parametrize(
    ("tool", "again"),
    [
        ("create_refund", 'create_refund("{order}", 1, "other")'),
        ("reserve_item", "{call}"),
        ("send_document", "{call}"),
    ],
)
async def test_a_write_done_twice_fails(part, run_task, tool, again) -> None:
    seen, canonical = 0, part("tools.world").canonical
    for task in part("pipelines.support.tasks").tasks("frozen"):
        call = re.search(rf"= ({tool}\((?:[^()\"]|\"[^\"]*\")*\))", task.plan)
        if call is None or not task.changes or len(task.labels) > 1:
            continue
        order = re.search(r"SO-\d{5}", task.plan)
        second = again.format(call=call[1], order=order[0] if order else "")
        *lines, say = task.plan.splitlines()
        _, changes, verdict = await run_task(task, "\n".join([*lines, f"again = {second}", say]))
        if changes != sorted(task.changes, key=canonical):  # else the shop itself refused the second one
            seen += 1
            assert verdict.success is False, f"{task.id}: {changes}"
    assert seen >= 5
