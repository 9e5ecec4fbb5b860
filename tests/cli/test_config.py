"""What `astra` keeps on disk: where it works, and its token."""

import errno
from pathlib import Path

import pytest

from astraconsole.cli import config

SAVED = config.Config("http://console", "secret", "acme", "vision", "gpu-east")


def test_the_saved_configuration_is_private_and_the_environment_wins(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    config.save(SAVED, home)
    assert config.config_path(home).stat().st_mode & 0o777 == 0o600
    assert config.load(home) == SAVED
    assert config.load({**home, "ASTRA_CLUSTER": "west"}).cluster == "west"
    assert config.load({**home, "ASTRA_WORKSPACE": "nlp"}).cluster == ""
    assert config.load({**home, "ASTRA_URL": "http://elsewhere"}).token == ""


def test_a_configuration_that_others_can_read_is_made_private_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    config.save(SAVED, home)
    assert config.load(home) == SAVED
    assert capsys.readouterr().err == ""
    config.config_path(home).chmod(0o644)
    assert config.load(home) == SAVED
    assert "its mode is 600 now" in capsys.readouterr().err
    assert config.config_path(home).stat().st_mode & 0o777 == 0o600


def test_a_configuration_on_a_read_only_disk_is_used_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    config.save(SAVED, home)
    config.config_path(home).chmod(0o644)

    def refuse(path: Path, mode: int) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "chmod", refuse)
    assert config.load(home) == SAVED
    assert "its mode should be 600" in capsys.readouterr().err
