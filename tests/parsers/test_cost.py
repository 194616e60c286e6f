"""What parsing costs: microseconds for usual values, and never more than the length of a hostile one."""

import time
from collections.abc import Callable

import pytest

from agentops.errors import PolicyError
from agentops.parsers import domain, email, file_path, identifier, json_value, url


def beneath(text: str) -> str:
    return file_path(text, "/workspace")


def test_fifty_megabytes_cost_nothing() -> None:
    text = "[" * 50_000_000
    start = time.thread_time()
    for parse in (domain, email, beneath, url, lambda given: json_value(given, 65_536)):
        with pytest.raises(PolicyError):
            parse(text)
    assert time.thread_time() - start < 0.05


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (email, "a." * 30 + "a@" + "b." * 90 + "com"),
        (email, "a" * 64 + "." * 200),
        (domain, "a-" * 30 + "." + "a." * 90),
        (url, "http://a/" + "%2e/" * 500),
        (url, "http://a/" + "../" * 600 + "\\"),
        (beneath, "/workspace/" + "./a/" * 1000),
        (beneath, "/workspace/" + "é" * 1900),
    ],
)
def test_hostile_values_take_no_longer_than_their_length(parse: Callable[[str], object], text: str) -> None:
    def once() -> float:
        start = time.thread_time()
        try:
            parse(text)
        except PolicyError:
            pass
        return time.thread_time() - start

    assert min(once() for _ in range(5)) < 0.005


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (email, "mara.brandt@mail.example.com"),
        (domain, "mail.example.com"),
        (url, "https://api.example.com/v1/things/42?limit=10"),
        (beneath, "/workspace/reports/2026/q1.txt"),
        (identifier, "DOC-300001"),
    ],
)
def test_usual_values_take_microseconds(parse: Callable[[str], object], text: str) -> None:
    def hundred() -> float:
        start = time.thread_time()
        for _ in range(100):
            parse(text)
        return (time.thread_time() - start) / 100

    assert min(hundred() for _ in range(20)) < 40e-6  # 0.1 to 14 microseconds on a quiet machine
