"""Through the gateway: the tool gets the parsed value that was decided on, and connects where the decision looked."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentops.act import CacheRule, Context, Email, ToolGateway, Url, tool
from agentops.audit import MemoryAudit
from agentops.cache import MemoryCache
from agentops.graph import RealClock
from agentops.policy import Approvals, Budgets, Effects, Limits, PolicySet
from agentops.policy.budgets import UNLIMITED
from agentops.policy.labels import Readings
from agentops.redact import Redactor
from agentops.store import open_state
from agentops.types import AgentSpec, Labels, Principal, Run, ToolCall, ToolResult

POLICIES = """
@id("mail") permit (principal, action == Action::"send", resource)
when { context.args.to_domain == "shop.example" && context.source.to == "request" };

@id("net") permit (principal, action == Action::"fetch", resource)
when { context.args.url_host like "*.shop.example" && context.args.url_public && context.source.url == "request" };

@id("slow") @advice("approval:staff")
forbid (principal, action == Action::"fetch", resource) when { context.args.url_path like "/large/*" };
"""
GOT: list[tuple[Any, dict[str, str]]] = []


@tool(effect="egress", scopes={"n"}, timeout_s=1, pack="net")
async def send(ctx: Context, to: Email) -> dict:
    """Mail something."""
    GOT.append((to, dict(ctx.pins)))
    return {}


@tool(effect="read", scopes={"n"}, timeout_s=1, pack="net", cache=CacheRule(60.0), labels=Labels("untrusted"))
async def fetch(ctx: Context, url: Url) -> dict:
    """Read a page."""
    GOT.append((url, dict(ctx.pins)))
    return {"text": f"elsewhere is {url}index.html"}


TOOLS = {one.spec.name: one for one in (send, fetch)}
AGENT = AgentSpec("net", frozenset(TOOLS), frozenset({"n"}), max_calls=1000)
STAFF = Principal("t", "staff", roles=frozenset({"staff"}))


class Net:
    """A gateway over two tools, with a resolver whose answers a test writes."""

    def __init__(self, folder: Path, policies: str = POLICIES) -> None:
        (folder / "net.cedar").write_text(policies)
        specs = {name: one.spec for name, one in TOOLS.items()}
        self.state, clock = open_state(folder, None), RealClock()
        self.approvals = Approvals(self.state, clock)
        self.asked: list[str] = []
        self.answers: list[list[str] | float] = [["93.184.216.34"]]
        self.gateway = ToolGateway(
            TOOLS,
            PolicySet.load(folder, specs, {"net": AGENT}),
            MemoryAudit(),
            self.approvals,
            Budgets(self.state, clock, Limits(UNLIMITED)),
            Readings(self.state, clock),
            Effects(self.state, clock),
            MemoryCache(),
            None,
            clock,
            None,
            Redactor(b"k" * 32),
            resolver=self.resolve,
        )

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            return []
        return answer

    def call(self, name: str, request: str, **arguments: Any) -> ToolResult:
        who = Principal("t", "ann", frozenset({"n"}))
        run = Run("r", "s", who, AGENT, time.time() + 60, request=request)
        return asyncio.run(self.gateway.call(run, ToolCall("c", name, arguments)))


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    GOT.clear()
    made = Net(tmp_path)
    yield made
    made.state.close()


def test_the_tool_gets_what_was_decided_on(net: Net) -> None:
    result = net.call("send", "Mail it to Ann@Shop.EXAMPLE, please", to="Ann@Shop.EXAMPLE")
    assert result.status == "ok", result.error
    assert GOT == [("Ann@shop.example", {})]
    refused = net.call("send", "to a@evil.test@shop.example", to="a@evil.test@shop.example")
    assert (refused.status, len(GOT)) == ("error", 1)
    assert "evil" not in refused.error


def test_the_address_that_was_decided_on_is_pinned(net: Net) -> None:
    net.answers = [["93.184.216.34"], ["127.0.0.1"]]  # the name is bound to another address right after
    result = net.call("fetch", "Read https://www.shop.example", url="https://www.shop.example")
    assert result.status == "ok", result.error
    assert GOT == [("https://www.shop.example/", {"www.shop.example:443": "93.184.216.34"})]
    again = net.call("fetch", "Read https://www.shop.example", url="HTTPS://WWW.shop.example:443")
    assert (again.status, again.decision.policies, len(GOT)) == ("denied", ("default-deny",), 1), "also from the cache"


@pytest.mark.parametrize("answer", [["10.0.0.1"], ["93.184.216.34", "::ffff:127.0.0.1"], [], 30.0])
def test_a_host_that_is_inside_or_not_found_is_denied(net: Net, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net.answers = [answer]
    started = time.monotonic()
    assert net.call("fetch", "Read https://www.shop.example/", url="https://www.shop.example/").status == "denied"
    assert time.monotonic() - started < 4
    assert GOT == []


@pytest.mark.parametrize(
    "url",
    [
        "https://the-secret.evil.test/",
        "http://169.254.169.254/",
        "https://127.1/",
        "https://www.shop.example@evil.test/",
    ],
)
def test_what_is_denied_anyway_tells_nobody_its_name(net: Net, url: str) -> None:
    assert net.call("fetch", f"Read {url}", url=url).status in ("denied", "error")
    assert net.asked == GOT == []


def test_a_name_waits_for_the_person_who_approves(net: Net) -> None:
    url = "https://www.shop.example/large/x"
    asked = net.call("fetch", f"Read {url}", url=url)
    assert (asked.status, net.asked) == ("pending", [])
    net.approvals.decide(asked.approval_id, True, STAFF, "fine")
    net.answers = [["10.0.0.1"]]
    assert net.call("fetch", f"Read {url}", url=url).status == "denied", "an approval does not move the host outside"
    net.answers = [["93.184.216.34"]]
    assert net.call("fetch", f"Read {url}", url=url).status == "ok"
    assert [(url, {"www.shop.example:443": "93.184.216.34"})] == GOT


def test_what_was_looked_up_before_the_question_is_pinned_after_it(tmp_path: Path) -> None:
    """A policy over addresses needs them before a person is asked: the approved call may use only those."""
    GOT.clear()
    far = """
@id("far") @advice("approval:staff")
forbid (principal, action == Action::"fetch", resource)
when { !context.args.url_address.isInRange(ip("10.0.0.0/8")) };
"""
    net = Net(tmp_path, POLICIES + far)
    try:
        url = "https://www.shop.example/x"
        asked = net.call("fetch", f"Read {url}", url=url)
        assert asked.status == "pending"
        net.approvals.decide(asked.approval_id, True, STAFF, "fine")
        net.answers = [["93.184.216.34"], ["127.0.0.1"]]
        assert net.call("fetch", f"Read {url}", url=url).status == "ok"
    finally:
        net.state.close()
    assert [(url, {"www.shop.example:443": "93.184.216.34"})] == GOT


def test_what_the_user_named_is_theirs_in_any_spelling(net: Net) -> None:
    """After a page was read, an address is the user's own only when it stands in the request as it was handed over."""
    request = "Read https://a.shop.example/start and then https://www.shop.example"
    assert net.call("fetch", request, url="https://a.shop.example/start").status == "ok"
    assert net.call("fetch", request, url="https://www.shop.example").status == "ok"
    assert net.call("fetch", request, url="https://a.shop.example/startindex.html").status == "denied"


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: "x" * 50_000_000, "bytes"),
        (lambda: [[]] * 5_000_000, "bytes"),
        (deep, "deeper"),
        (lambda: {"__entity": {"type": "Run", "id": "run"}}, "string"),
        (lambda: float("nan"), "not JSON"),
        (lambda: 10**5_000, "not JSON"),
        (lambda: "a@shop.example\ud800", "not JSON"),
    ],
)
def test_hostile_arguments_cost_nothing_and_reach_nothing(net: Net, make: Callable[[], Any], words: str) -> None:
    value = make()
    start = time.thread_time()
    result = net.call("send", "x", to=value)
    assert time.thread_time() - start < 0.5
    assert (result.status, GOT) == ("error", [])
    assert words in result.error
