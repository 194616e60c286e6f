"""A cached result may be shared by users only where the tool says so, and never when it is personal."""

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
