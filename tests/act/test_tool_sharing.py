"""A cached result may be shared by users only where the tool says so, and never when it is personal."""

from dataclasses import replace
from typing import Any

import pytest

from agentops.act import CacheRule, Labels, tool


def test_personal_results_cannot_be_shared_between_users() -> None:
    with pytest.raises(ValueError, match="'mine' returns personal data: its cache cannot be shared"):

        @tool(
            effect="read",
            scopes={"a:read"},
            timeout_s=1,
            cache=CacheRule(10, shared=True),
            labels=Labels(confidentiality="personal"),
            pack="p",
        )
        async def mine(ctx, key: str) -> dict:
            """Mine."""
            return {}


def test_a_shared_read_is_shared_by_users_with_the_same_rights_only(desk: Any, people: Any) -> None:
    def asked(**changes: Any) -> bool:
        return desk.go(desk.call("price", desk.run(replace(people[0], **changes)), sku="A")).cached

    assert [asked(), asked(user="bob")] == [False, True]
    assert not asked(tenant="globex")
    assert not asked(roles=frozenset({"staff"}))
    assert not asked(actors=("frontend",))
    assert desk.world.counts == {"price": 4}
