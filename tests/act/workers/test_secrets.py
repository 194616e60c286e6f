"""Secrets are declared in a policy file, and leave the environment when they are loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentops.act.sandbox.secrets import Secrets, declared_secrets, secret_problems
from agentops.errors import PolicyError, SandboxError
from agentops.redact import Redactor

GOOD = """
[secrets.shop]
from_env = "SHOP_KEY"
hosts = ["api.shop.example:443"]
header = "X-Api-Key"
format = "key={}"
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "secrets.toml").write_text(GOOD)
    return folder


def test_a_value_is_taken_out_of_the_environment_and_printed_nowhere(policies: Path) -> None:
    environ = {"SHOP_KEY": "abcdef-123456", "OTHER": "x"}
    secrets = Secrets.load(policies, environ)
    assert environ == {"OTHER": "x"}
    shop = secrets.get("shop", ("shop",))
    assert shop.injected() == "key=abcdef-123456"
    assert "abcdef" not in f"{secrets!r} {shop!r} {shop}"
    assert [secret.name for secret in declared_secrets(policies)] == ["shop"]


def test_two_secrets_may_share_a_variable(policies: Path) -> None:
    (policies / "secrets.toml").write_text(GOOD + GOOD.replace("secrets.shop", "secrets.twin"))
    secrets = Secrets.load(policies, {"SHOP_KEY": "abcdef-123456"})
    assert secrets.get("twin", ("twin",)).value == secrets.get("shop", ("shop",)).value == "abcdef-123456"


def test_the_process_does_not_have_it_in_its_environment_and_a_second_load_still_works(policies: Path) -> None:
    code = (
        "import os, subprocess, sys; from pathlib import Path\n"
        "from agentops.act.sandbox.secrets import Secrets\n"
        "for _ in range(2): value = Secrets.load(Path(sys.argv[1])).get('shop', ('shop',)).value\n"
        "assert value == 'abcdef-123456' and 'SHOP_KEY' not in os.environ\n"
        "assert b'SHOP_KEY' not in subprocess.run(['env'], capture_output=True).stdout\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(policies)], env={**os.environ, "SHOP_KEY": "abcdef-123456"}, check=True
    )


def test_values_are_known_to_the_redactor(policies: Path) -> None:
    secrets = Secrets.load(policies, {"SHOP_KEY": "abcdef-123456"})
    redactor = Redactor(b"k" * 32, secrets.values)
    assert "abcdef-123456" not in redactor.text("it answered: abcdef-123456 is wrong")


def test_a_file_is_read_only_when_its_owner_alone_reads_it(policies: Path, tmp_path: Path) -> None:
    file = tmp_path / "shop.key"
    (policies / "secrets.toml").write_text(GOOD.replace('from_env = "SHOP_KEY"', f'from_file = "{file}"'))
    with pytest.raises(SandboxError, match="no value"):
        Secrets.load(policies, {}).get("shop", ("shop",))
    file.write_text("abcdef-123456\n")
    for mode in (0o644, 0o640, 0o604):
        file.chmod(mode)
        with pytest.raises(PolicyError, match="chmod 400"):
            Secrets.load(policies, {})
    file.chmod(0o400)
    assert Secrets.load(policies, {}).get("shop", ("shop",)).value == "abcdef-123456"
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(PolicyError, match="chmod 400"):
        Secrets.load(policies, {})


@pytest.mark.parametrize("value", ["short", "abcdef-123456\nX: y", "abcdéf-123456", "x" * 20_000])
def test_a_value_that_no_header_may_hold_is_refused_without_repeating_it(policies: Path, value: str) -> None:
    if len(value) > 10_000:
        file = policies / "key"
        file.write_text(value)
        file.chmod(0o400)
        (policies / "secrets.toml").write_text(GOOD.replace('from_env = "SHOP_KEY"', f'from_file = "{file}"'))
    with pytest.raises(PolicyError) as caught:
        Secrets.load(policies, {"SHOP_KEY": value})
    assert value not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("SHOP_KEY", "shop-key", "no name of a variable"),
        ('from_env = "SHOP_KEY"', "", "exactly one"),
        ('from_env = "SHOP_KEY"', 'from_env = "A"\nfrom_file = "/b"', "exactly one"),
        ('from_env = "SHOP_KEY"', 'from_file = "b"', "not absolute"),
        ("api.shop.example:443", "api.shop.example", "not acceptable"),
        ("api.shop.example:443", "*.shop.example:443", "not acceptable"),
        ("X-Api-Key", "X Api", "letters"),
        ("key={}", "key", "one {}"),
        ("key={}", "{}{}", "one {}"),
        ("header", "headers", "not known"),
        ("secrets.shop", "secrets.Shop", "lower-case"),
        ("[secrets.shop]", "[secret.shop]", "not known"),
        ("[secrets.shop]", "[secrets.shop", "not valid TOML"),
        ('hosts = ["api.shop.example:443"]', "", "nothing could use it"),
        ('hosts = ["api.shop.example:443"]', 'readable = "yes"', "true or false"),
    ],
)
def test_a_file_that_says_anything_else_is_refused_with_its_line(policies: Path, old: str, new: str, text: str) -> None:
    assert secret_problems(policies) == []
    (policies / "secrets.toml").write_text(GOOD.replace(old, new, 1))
    (problem, *_) = secret_problems(policies)
    assert text in problem.message
    with pytest.raises(PolicyError):
        Secrets.load(policies, {"SHOP_KEY": "abcdef-123456"})


def test_no_file_means_no_secrets(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="not declared"):
        Secrets.load(tmp_path, {}).get("shop", ("shop",))
