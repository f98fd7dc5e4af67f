"""contrib/grafana: what Grafana needs of a dashboard, as far as it can be checked without Grafana."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.integrations.test_telemetry import DASHBOARD, exported_names, panel_queries, program

PAGE: dict[str, Any] = json.loads(DASHBOARD.read_text())
PANELS: list[dict[str, Any]] = PAGE["panels"]
COLUMNS = 24  # of Grafana's grid
BUILT_IN = {"__rate_interval"}


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    across, down = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
    return set(itertools.product(across, down))


def test_panels_lie_side_by_side_on_the_grid() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken = [cells(panel) for panel in PANELS]
    assert sum(map(len, taken)) == len(set().union(*taken)), "panels overlap"
    assert max(x for x, _ in set().union(*taken)) < COLUMNS


def test_every_panel_has_what_its_type_needs() -> None:
    for panel in PANELS:
        assert panel["type"] in {"stat", "timeseries"}
        assert panel["title"]
        assert panel["fieldConfig"].keys() == {"defaults", "overrides"}
        assert ("reduceOptions" in panel["options"]) == (panel["type"] == "stat")
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters) > 0
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_every_variable_is_declared_before_it_is_used() -> None:
    declared: set[str] = set()
    for variable in PAGE["templating"]["list"]:
        assert used_in(variable) <= declared | BUILT_IN
        declared.add(variable["name"])
    assert used_in(PANELS) - BUILT_IN == declared == {"datasource", "job", "instance"}


def used_in(part: Any) -> set[str]:
    return set(re.findall(r"\$\{?(\w+)", json.dumps(part))) - {"__all"}


def test_every_query_is_promql_about_an_exported_metric(tmp_path: Path) -> None:
    queries = panel_queries()
    for title, query in queries:
        named = set(re.findall(r"\bhalfguard_\w+", query))
        assert named, title
        assert named <= exported_names(), title
    rules = [
        {"record": f"panel:{number}", "expr": query} for number, (_, query) in enumerate(queries)
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    command = [program("promtool"), "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout
