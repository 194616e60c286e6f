"""Looks up hosts of web addresses once, before the decision; the addresses found are what the call may connect to.

Invariant: a host that is not found in time is left out, so the decision is a denial. What was decided on is pinned:
whoever connects later uses the pinned address, whatever the name resolves to by then (DNS rebinding). It decides
nothing and connects to nothing but the system's resolver.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence

from agentops.errors import AgentopsError
from agentops.parsers import Url, ip_address

TIMEOUT_S = 2.0
MAX_THREADS = 32  # lookups that hang; above, hosts are not found
Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
_free = threading.Semaphore(MAX_THREADS)


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """All addresses of a host, as the system's resolver knows them; in a thread of its own, which may hang.

    Raises:
        OSError: the host is not found, or too many lookups hang.
    """
    if not _free.acquire(blocking=False):
        raise OSError("too many lookups are under way")
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def end(result: list[str] | OSError) -> None:
        if found.done():
            return  # nobody waits any more
        if isinstance(result, OSError):
            found.set_exception(result)
        else:
            found.set_result(result)

    def work() -> None:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
            result: list[str] | OSError = list(dict.fromkeys(str(row[4][0]) for row in rows))
        except (OSError, UnicodeError) as error:
            result = OSError(f"not found: {type(error).__name__}")
        finally:
            _free.release()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(end, result)

    threading.Thread(target=work, name="lookup", daemon=True).start()
    return await found


async def simulated_resolver(host: str, port: int) -> Sequence[str]:
    """For simulations: every name is found, at one public address, and nobody is asked."""
    return ["8.8.8.8"]


async def look_up(
    hosts: Mapping[str, Url], resolver: Resolver = system_resolver, timeout_s: float = TIMEOUT_S
) -> dict[str, list[str]]:
    """The addresses of each host, by argument; the fact `addresses` of `PolicySet.decide`.

    Args:
        hosts: web addresses by argument, as `PolicySet.hosts` names them.
        resolver: finds addresses.
        timeout_s: seconds of real time for all of them.
    """
    asked = {(url.host, url.port) for url in hosts.values()}  # one answer for one host: both arguments get the same pin
    tasks = {endpoint: asyncio.ensure_future(_one(resolver, *endpoint)) for endpoint in asked}
    try:
        await asyncio.wait(tasks.values(), timeout=timeout_s)
        found = {endpoint: task.result() for endpoint, task in tasks.items() if task.done()}
    finally:
        for task in tasks.values():
            task.cancel()
    answers = {name: found.get((url.host, url.port), []) for name, url in hosts.items()}
    return {name: addresses for name, addresses in answers.items() if addresses}


def pins(hosts: Mapping[str, Url], addresses: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """`host:port` -> the address to connect to, for every host that was looked up for a call: `Context.pins`."""
    return {url.endpoint: addresses[name][0] for name, url in hosts.items() if name in addresses}


async def _one(resolver: Resolver, host: str, port: int) -> list[str]:
    """Addresses in their one spelling; none when anything about the answer is odd."""
    try:
        return [ip_address(address.partition("%")[0]) for address in await resolver(host, port)]
    except (OSError, AgentopsError):
        return []
