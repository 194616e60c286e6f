"""Settings: file, environment, refusals."""

import pytest

from agentops import config
from agentops.errors import ConfigError


def test_environment_wins_over_the_file() -> None:
    settings = config.load({"port": 1000, "service": "desk"}, {"AGENTOPS_PORT": "2000"})
    assert (settings.port, settings.service) == (2000, "desk")


def test_unknown_key_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'prot' is not a setting; known settings: .*port"):
        config.load({"prot": 1}, {})


def test_value_out_of_range_says_where_it_was_set() -> None:
    with pytest.raises(ConfigError, match="AGENTOPS_PORT = '99999' is not allowed"):
        config.load({}, {"AGENTOPS_PORT": "99999"})
    with pytest.raises(ConfigError, match=r"\[tool.agentops\] port = -1 is not allowed"):
        config.load({"port": -1}, {})


@pytest.mark.parametrize("key", config.SECRET_KEYS)
def test_secrets_come_only_from_the_environment_and_never_print(key: str) -> None:
    with pytest.raises(ConfigError, match=f"set AGENTOPS_{key.upper()} instead") as caught:
        config.load({key: "hunter2"}, {})
    assert "hunter2" not in str(caught.value)
    settings = config.load({}, {f"AGENTOPS_{key.upper()}": "hunter2"})
    assert "hunter2" not in repr(settings)
    assert getattr(settings, key).get_secret_value() == "hunter2"


def test_every_setting_is_documented() -> None:
    undocumented = [key for key, field in config.Settings.model_fields.items() if not field.description]
    assert undocumented == []


def test_home_ignores_itself_and_is_its_owners(tmp_path) -> None:
    home = config.home(tmp_path, config.load({}, {}))
    assert home == tmp_path / ".agentops"
    assert (home / ".gitignore").read_text() == "*\n"
    assert home.stat().st_mode & 0o777 == 0o700
