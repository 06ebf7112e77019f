"""The table of hazards stays complete and true: a row that loses its test must not go unnoticed."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(r"\| (\d+) \| ([^|]+) \| ([^|]+) \|")
TEST = re.compile(r"(?:\.\./\w+/)?test_\w+\.py::test_\w+")


def test_every_hazard_has_a_test_that_exists() -> None:
    text = (HERE / "README.md").read_text()
    rows = {int(match[1]): match[3] for match in ROW.finditer(text)}
    assert sorted(rows) == list(range(1, 47))
    assert all(TEST.search(tests) for tests in rows.values()), "a row without a test"
    for name in TEST.findall(text):
        file, _, function = name.partition("::")
        assert re.search(rf"^def {function}\(", (HERE / file).read_text(), re.MULTILINE), f"{name} does not exist"


def test_every_hostile_test_and_row_w_is_listed_where_it_belongs() -> None:
    folder = HERE.parent / "hostile"
    text = (folder / "README.md").read_text()
    for name in TEST.findall(text):
        file, _, function = name.partition("::")
        assert re.search(rf"^def {function}\(", (folder / file).read_text(), re.MULTILINE), f"{name} does not exist"
    rows = re.findall(r"^\| W(\d+) \|.*test_\w+", text, re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, 16))
