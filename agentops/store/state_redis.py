"""State in Redis (or Valkey): shared by replicas on many machines.

Invariant: every operation is one Lua script, so it is atomic; all keys share one hash tag, so a cluster keeps them
together. No write is retried on its own: a lost answer must not append or count twice. A server that does not answer
costs each caller `ANSWER_S` at most once: until it answers a probe, everything else fails at once. How durable a write
is depends on the server's persistence (`appendonly yes`, `appendfsync always` for approvals and money).
"""

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from agentops.errors import StoreError
from agentops.store.state import checked_key, checked_prefix, checked_value, checked_window

T = TypeVar("T")

CONNECT_S = 0.25
ANSWER_S = 0.5
PROBE_S = 0.2  # between two questions whether a server that failed is back
_TAG = "{agentops:state}"
_NAMES, _VALUES, _VERSIONS, _COUNTER = (f"{_TAG}:{part}" for part in ("names", "values", "versions", "counter"))
_LOG = f"{_TAG}:log:"

_PUT = """
local version = redis.call('INCR', KEYS[4])
redis.call('ZADD', KEYS[1], 0, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[3], ARGV[1], version)
return version
"""
_GET = """
local value = redis.call('HGET', KEYS[2], ARGV[1])
if not value then return nil end
return {value, redis.call('HGET', KEYS[3], ARGV[1])}
"""
_COMPARE_AND_SET = """
local version = redis.call('HGET', KEYS[3], ARGV[1]) or '0'
if version ~= ARGV[2] then return 0 end
if ARGV[3] == 'delete' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
else
  local next = redis.call('INCR', KEYS[4])
  redis.call('ZADD', KEYS[1], 0, ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
  redis.call('HSET', KEYS[3], ARGV[1], next)
end
return 1
"""
_SCAN = """
local names = redis.call('ZRANGEBYLEX', KEYS[1], '[' .. ARGV[1], '(' .. ARGV[1] .. '\\255')
local found = {}
for _, name in ipairs(names) do
  found[#found + 1] = name
  found[#found + 1] = redis.call('HGET', KEYS[2], name)
  found[#found + 1] = redis.call('HGET', KEYS[3], name)
end
return found
"""


class RedisState:
    """`State` over a Redis server.

    Args:
        url: redis:// or rediss:// URL; never repeated in errors, it may hold a password.
    """

    local = False

    def __init__(self, url: str) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self._place = _place(url)
        self._closed = False
        self._failed = (redis.ConnectionError, redis.TimeoutError, OSError)
        self._error = redis.RedisError
        self._down = ""  # what went wrong last; "" = the server answers
        self._probe: threading.Thread | None = None
        self._probing = threading.Lock()
        try:
            self._client = redis.Redis.from_url(
                url,
                socket_connect_timeout=CONNECT_S,
                socket_timeout=ANSWER_S,
                health_check_interval=15,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise StoreError(f"the Redis URL is not usable: {_without_url(str(error), url)}") from None
        register = self._client.register_script
        self._put, self._get, self._cas, self._scan = map(register, (_PUT, _GET, _COMPARE_AND_SET, _SCAN))
        try:
            self._ask(self._client.ping)
        except StoreError:
            self.close()  # nobody holds this object: the probe must end
            raise

    def get(self, key: str) -> tuple[bytes, int] | None:
        name = checked_key(key)
        found = self._ask(lambda: self._get(keys=self._keys(), args=[name]))
        return None if found is None else (found[0], int(found[1]))

    def put(self, key: str, value: bytes) -> int:
        name, data = checked_key(key), checked_value(value)
        return int(self._ask(lambda: self._put(keys=self._keys(), args=[name, data])))

    def compare_and_set(self, key: str, value: bytes | None, version: int, durable: bool = True) -> bool:
        name, data = checked_key(key), b"" if value is None else checked_value(value)
        what = "delete" if value is None else "set"
        return bool(self._ask(lambda: self._cas(keys=self._keys(), args=[name, str(version), what, data])))

    def scan(self, prefix: str) -> list[tuple[str, bytes, int]]:
        start = checked_prefix(prefix)
        flat = self._ask(lambda: self._scan(keys=self._keys(), args=[start]))
        return [(flat[i].decode(), flat[i + 1], int(flat[i + 2])) for i in range(0, len(flat), 3)]

    def append(self, stream: str, value: bytes) -> int:
        name, data = _LOG.encode() + checked_key(stream), checked_value(value)
        return int(self._ask(lambda: self._client.rpush(name, data)))

    def read(self, stream: str, after: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        name, (start, count) = _LOG.encode() + checked_key(stream), checked_window(after, limit)
        values = self._ask(lambda: self._client.lrange(name, start, start + count - 1))
        return list(enumerate(values, start + 1))

    def close(self) -> None:
        self._closed = True
        self._client.close()

    @staticmethod
    def _keys() -> list[str]:
        return [_NAMES, _VALUES, _VERSIONS, _COUNTER]

    def _ask(self, operation: Callable[[], Any]) -> Any:
        if self._closed:
            raise StoreError(f"the state at {self._place} was closed")
        if self._down:
            self._watch()
            raise self._unanswered(self._down)
        try:
            return operation()
        except (self._error, OSError) as error:
            if isinstance(error, self._failed):
                self._down = type(error).__name__
                self._watch()
            raise self._unanswered(type(error).__name__) from None

    def _unanswered(self, problem: str) -> StoreError:
        return StoreError(
            f"the shared state at {self._place} does not answer ({problem}): check that Redis runs there and "
            "AGENTOPS_REDIS_URL is right; a write that was under way was made whole or not at all"
        )

    def _watch(self) -> None:
        """See to it that one thread of this process asks until the server answers."""
        with self._probing:
            if self._probe is None or not self._probe.is_alive():  # a forked child has none
                self._probe = threading.Thread(target=self._until_answered, name="state-probe", daemon=True)
                self._probe.start()

    def _until_answered(self) -> None:
        while not self._closed:
            try:
                self._client.ping()
            except (self._error, OSError):
                time.sleep(PROBE_S)
            else:
                self._down = ""
                return


def _place(url: str) -> str:
    """host:port of a URL, without user and password."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or parts.path or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        return "the configured address"


def _without_url(message: str, url: str) -> str:
    return message.replace(url, "***")[:200]
