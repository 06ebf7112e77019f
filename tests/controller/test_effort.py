"""A dispatch whose model or effort is only the account's default is a failed dispatch (seed 003): the pin must travel."""

from __future__ import annotations

import json
from pathlib import Path

from tests.host import BINDING, EGRESS, Host


def test_the_sanctioned_effort_gets_lost_on_the_way_to_the_adapter(host: Host) -> None:
    host.init(egress={**EGRESS, "effort": "low"}).expect("READY")
    prepared = host.prepare().expect("PREPARED").body
    authorization = json.loads(Path(prepared["authorization_path"]).read_bytes())
    assert authorization["effort"] == "low"
    host.authorize(prepared, host.write_job(prepared)).expect("AUTHORIZED")


def test_an_unpinned_run_gets_a_key_that_other_adapters_refuse(run: Host) -> None:
    prepared = run.prepare().expect("PREPARED").body
    assert len(json.loads(Path(prepared["authorization_path"]).read_bytes())) == 13


def test_xhigh_reaches_a_cli_that_does_not_know_it(host: Host) -> None:
    egress = {"route": "claude", "intermediaries": [], "effort": "xhigh"}
    reply = host.init(binding={**BINDING, "target": "claude"}, egress=egress).expect("REFUSED")
    assert "codex" in reply.stderr
    assert not host.run_dir().exists()
