"""The states page is the machine's own table, so that nobody reads a diagram that the controller does not obey."""

from __future__ import annotations

from controller import machine
from tests.host import ROOT


def test_the_states_page_shows_another_machine_than_the_one_in_force() -> None:
    page = (ROOT / "docs" / "states.md").read_text()
    assert f"```mermaid\n{machine.diagram()}```" in page, "write docs/states.md anew from controller.machine.diagram()"
