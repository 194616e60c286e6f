"""The reference project's environment with its real policies, gateway, scheduler, world and verifier."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentops import project, redact
from agentops.act import ToolGateway, execute
from agentops.cache import MemoryCache
from agentops.plan import answer, parse
from agentops.policy import Approvals, Budgets, Effects, PolicySet, Readings, identities, principal
from agentops.simulate import ProjectEnvironment
from agentops.store import MemoryState

SEED = 7  # of the reference world


@pytest.fixture(scope="session")
def desk(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], ProjectEnvironment]:
    """Makes environments of the support desk."""
    home = tmp_path_factory.mktemp("desk")
    loaded = project.load(repo, {"AGENTOPS_HOME": str(home)})
    specs = {name: tool.spec for name, tool in loaded.tools.items()}
    policy = PolicySet.load(loaded.policies, specs, loaded.agents)
    limits = identities(loaded.policies).limits
    redactor = redact.load(loaded.policies, home)
    verify = project.module(repo, "pipelines.support.verify").verify
    world = home / "pristine.db"
    project.module(repo, "tools.world").create(world, SEED)

    def gateway(opened: Any, clock: Any, audit: Any) -> ToolGateway:
        state = MemoryState()
        approvals, budgets = Approvals(state, clock), Budgets(state, clock, limits)
        cache = MemoryCache()
        return ToolGateway(
            loaded.tools,
            policy,
            audit,
            approvals,
            budgets,
            Readings(state, clock),
            Effects(state, clock),
            cache,
            opened,
            clock,
            None,
            redactor,
        )

    def make() -> ProjectEnvironment:
        return ProjectEnvironment(
            loaded,
            world,
            parse=parse,
            gateway=gateway,
            execute=lambda plan, gate, run, clock: execute(plan, gate, run, clock, {}, loaded.agents),
            verify=verify,
            answer=answer,
            principal=lambda task: principal(loaded.policies, "default", task.user, ("customer",)),
            policy_digest=policy.digest,
        )

    return make
