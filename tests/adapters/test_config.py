"""The user's own commands come from the user's own file, and a mistake in it is explained."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapters.config import Config, config_path, load_config
from adapters.errors import ConfigError


def write(tmp_path: Path, text: str, mode: int = 0o600) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_command_is_read_and_its_template_filled_once(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            '[commands.mine]\nargv = ["tool", "--dir={workspace}", "{result_file}", "{print}"]\nenv = ["TOKEN"]\n',
        )
    )
    found = config.command("auto")
    assert not isinstance(found, str)
    name, command = found
    values = {"workspace": "/w{result_file}", "prompt_file": "/p", "result_file": "/r"}
    assert name == "mine"
    assert command.filled(values) == ("tool", "--dir=/w{result_file}", "/r", "{print}")
    assert command.env == ("TOKEN",)
    assert command.prompt == "stdin"


def test_no_file_is_no_command(tmp_path: Path) -> None:
    assert load_config(tmp_path / "none.toml") == Config()
    assert "configured: none" in str(Config().command("auto"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("commands = ", "is not TOML"),
        ("[comands.x]\nargv = ['a']", "unknown key 'comands' in the top level; did you mean 'commands'"),
        ("[commands.x]\nargs = ['a']", r"unknown key 'args' in \[commands.x\]; did you mean 'argv'"),
        ("[commands.x]\nzzz = 1", "known keys: argv, prompt, env, state, confinement, default"),
        ("[commands.x]\nprompt = 'stdin'", "argv"),
        ("[commands.x]\nargv = []", "argv"),
        ("[commands.x]\nargv = 'a'", "argv"),
        ("[commands.x]\nargv = ['a', 1]", "argv"),
        ("[commands.x]\nargv = ['./a']", "name on PATH or an absolute path"),
        ("[commands.x]\nargv = ['{workspace}/run']", "name on PATH or an absolute path"),
        ("[commands.x]\nargv = ['']", "name on PATH or an absolute path"),
        ("[commands.x]\nargv = ['a', '{promptfile}']", r"did you mean \{prompt_file\}"),
        ("[commands.x]\nargv = ['a']\nprompt = 'file'", r"needs \{prompt_file\}"),
        ("[commands.x]\nargv = ['a']\nprompt = 'argv'", "prompt"),
        ("[commands.x]\nargv = ['a']\nenv = ['A B']", "env"),
        ("[commands.x]\nargv = ['a']\nenv = ['A=1']", "env"),
        ("[commands.x]\nargv = ['a']\ndefault = 1", "default"),
        ("[commands.auto]\nargv = ['a']", "not be 'auto'"),
        ("[commands.'a b']\nargv = ['a']", "command name 'a b'"),
        ("[commands.a]\nargv=['a']\ndefault=true\n[commands.b]\nargv=['a']\ndefault=true", "only one command"),
        ("commands = 1", "commands"),
    ],
)
def test_a_mistake_is_named_with_what_was_expected(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert str(path) in str(caught.value)


def test_auto_means_the_only_command_or_the_default_one(tmp_path: Path) -> None:
    two = "[commands.a]\nargv = ['a']\n[commands.b]\nargv = ['b']\n"
    without = load_config(write(tmp_path, two)).command("auto")
    assert isinstance(without, str)
    assert "a, b" in without
    marked = load_config(write(tmp_path, two + "default = true\n")).command("auto")
    assert not isinstance(marked, str)
    assert marked[0] == "b"
    assert "no command named 'c'" in str(load_config(write(tmp_path, two)).command("c"))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="others may write it"):
        load_config(write(tmp_path, "", mode))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="must be owned by you"):
        load_config(path)


def test_a_fifo_or_a_directory_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "."):
        with pytest.raises(ConfigError, match="is not a regular file"):
            load_config(tmp_path / name)


def test_a_file_in_the_workspace_is_refused_also_through_a_link(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    planted = write(workspace, "[commands.x]\nargv = ['a']")
    link = tmp_path / "link.toml"
    link.symlink_to(planted)
    for path in (planted, link):
        with pytest.raises(ConfigError, match="inside the unit's workspace"):
            load_config(path, outside=workspace)


def test_the_file_is_looked_for_in_the_users_folder_never_in_the_current_one() -> None:
    assert config_path({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/unit-workspace/config.toml")
    assert config_path({"XDG_CONFIG_HOME": "c", "HOME": "/h"}) == Path("/h/.config/unit-workspace/config.toml")
    assert config_path({"XDG_CONFIG_HOME": "", "HOME": "h"}).is_absolute()
