"""OpenTelemetry instruments: read at a scrape only, by the API alone, and by a real Prometheus."""

from __future__ import annotations

import gc
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from torch.optim import SGD

import halfguard as hg
from halfguard.guard.metrics_log import METRICS, WATCH_METRICS
from halfguard.integrations.telemetry import INSTRUMENTS, observe
from halfguard.records import Cause
from tests.integrations.tracked_run import loss_fn
from tests.support.counting import OpCounter
from tests.support.docs import ROOT
from tests.support.ranks import Ranks

RULES = ROOT / "contrib/prometheus/halfguard.rules.yml"
DASHBOARD = ROOT / "contrib/grafana/halfguard.json"


def make_guard() -> hg.Guard:
    model = torch.nn.Linear(4, 1)
    return hg.Guard(model, SGD(model.parameters(), lr=0.1), {"scale": {"init": 8.0}})


def batch(value: float = 1.0) -> torch.Tensor:
    return torch.full((8, 4), value)


@pytest.fixture
def reader(seed: object) -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    yield reader
    reader.shutdown()


def read(reader: InMemoryMetricReader) -> dict[tuple[str, ...], float]:
    """Return ``{(name, attribute values...): value}`` as an exporter sees it."""
    data = reader.get_metrics_data()
    assert isinstance(data, MetricsData)
    return {
        (metric.name, *map(str, (point.attributes or {}).values())): point.value  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def test_what_an_exporter_reads(
    reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    guard = make_guard()
    observe(guard, meter_provider=MeterProvider([reader]))
    for value in (1.0, 1.0, math.nan):
        guard.step(loss_fn, batch(value))
    caplog.clear()
    seen = read(reader)
    assert seen["halfguard.steps", "apply"] == 2
    assert seen["halfguard.steps", "skip"] == seen["halfguard.skipped_steps", "bad_batch"] == 1
    assert {key[1] for key in seen if key[0] == "halfguard.skipped_steps"} == set(Cause)
    assert seen["halfguard.scale",] == 8
    assert not caplog.records


def test_a_measurement_that_is_not_finite_is_a_gap(
    reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    guard = make_guard()
    observe(guard, meter_provider=MeterProvider([reader]))
    guard.step(loss_fn, batch(math.nan))
    caplog.clear()
    assert not {("halfguard.loss",), ("halfguard.grad_norm",)} & set(read(reader))
    guard.step(loss_fn, batch())
    seen = read(reader)
    assert {name for name, *_ in seen} == {instrument.name for instrument in INSTRUMENTS}
    assert seen["halfguard.loss",] > 0
    assert not caplog.records


def test_before_the_first_step_there_are_counts_but_no_measurements(
    reader: InMemoryMetricReader,
) -> None:
    guard = make_guard()
    observe(guard, meter_provider=MeterProvider([reader]))
    seen = read(reader)
    assert seen["halfguard.steps", "apply"] == 0
    assert ("halfguard.loss",) not in seen


def test_reading_decides_no_step_and_asks_nothing_of_the_device(
    reader: InMemoryMetricReader,
) -> None:
    guard = make_guard()
    guard._pending.lag = 2
    observe(guard, meter_provider=MeterProvider([reader]))
    for _ in range(3):
        guard.step(loss_fn, batch())
    with OpCounter() as counter:
        assert read(reader)["halfguard.steps", "apply"] == 1
    assert counter.total == 0
    assert len(guard._pending._queue) == 2


def test_two_guards_are_told_apart_and_one_that_is_gone_is_no_longer_read(
    reader: InMemoryMetricReader,
) -> None:
    provider, guards = MeterProvider([reader]), {name: make_guard() for name in ("a", "b")}
    for name, guard in guards.items():
        observe(guard, attributes={"run": name}, meter_provider=provider)
    guards["b"].step(loss_fn, batch())
    seen = read(reader)
    assert (seen["halfguard.steps", "a", "apply"], seen["halfguard.steps", "b", "apply"]) == (0, 1)
    del guards["b"], guard
    gc.collect()
    assert {key[1] for key in read(reader)} == {"a"}


def _names_offered_here() -> set[str]:
    reader, guard = InMemoryMetricReader(), make_guard()
    observe(guard, meter_provider=MeterProvider([reader]))
    guard.step(loss_fn, batch())
    return {name for name, *_ in read(reader)} if reader.get_metrics_data() else set()


@pytest.mark.slow
def test_rank_0_offers_its_numbers_alone() -> None:
    ranks = Ranks(2)
    try:
        assert ranks.run(_names_offered_here) == [{i.name for i in INSTRUMENTS}, set()]
    finally:
        ranks.close()


_API_ALONE = """
import sys, torch, halfguard as hg
from halfguard.integrations.telemetry import observe
model = torch.nn.Linear(4, 1)
observe(hg.Guard(model, torch.optim.SGD(model.parameters(), lr=0.1)))
sys.exit(any(name.startswith(("opentelemetry.sdk", "prometheus_client")) for name in sys.modules))
"""
_WITHOUT_API = """
import sys
sys.modules["opentelemetry"] = sys.modules["opentelemetry.metrics"] = None
import halfguard.integrations.telemetry
"""


@pytest.mark.slow
def test_the_api_alone_is_imported() -> None:
    assert subprocess.run([sys.executable, "-c", _API_ALONE], check=False).returncode == 0


@pytest.mark.slow
def test_a_missing_api_is_answered_with_the_pip_command() -> None:
    command = [sys.executable, "-c", _WITHOUT_API]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert "Run: pip install 'halfguard[otel]'" in told


# -- Prometheus


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install --no-install-recommends prometheus")
    return found


@pytest.mark.parametrize(
    "check", [["check", "rules", RULES], ["test", "rules", RULES.with_suffix(".test.yml")]]
)
def test_the_alert_rules_are_valid_and_fire_when_they_should(check: list[Any]) -> None:
    command = [program("promtool"), *map(str, check)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "SUCCESS" in result.stdout + result.stderr


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    alerts = {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    cases = yaml.safe_load(RULES.with_suffix(".test.yml").read_text())["tests"]
    tested = [
        (t["alertname"], bool(t["exp_alerts"])) for case in cases for t in case["alert_rule_test"]
    ]
    assert {name for name, fires in tested if fires} == alerts
    assert {name for name, fires in tested if not fires} == alerts


def exported_names() -> set[str]:
    return {
        instrument.name.replace(".", "_") + ("_total" if instrument.counts else "")
        for instrument in INSTRUMENTS
    }


@pytest.mark.parametrize("path", [RULES, DASHBOARD], ids=["rules", "dashboard"])
def test_names_in_rules_and_dashboard_are_exported(path: Path) -> None:
    named = set(re.findall(r"\bhalfguard_\w+", path.read_text()))
    assert named - exported_names() == set()


class Prometheus:
    """A Prometheus server on the loopback, with the project's own alert rules, that scrapes each second."""

    def __init__(self, folder: Path, target: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        (folder / "prometheus.yml").write_text(
            f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n"
            f"rule_files: [{RULES}]\n"
            f"scrape_configs:\n"
            f"  - {{job_name: train, static_configs: [{{targets: ['127.0.0.1:{target}']}}]}}\n"
        )
        self._log = (folder / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={self.address}",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str) -> list[float]:
        return [float(r["value"][1]) for r in self.get("query", query=expression)["result"]]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


def wait_for(what: Callable[[], object], missing: str = "Prometheus did not see it") -> None:
    until = time.monotonic() + 90
    while True:
        try:
            if what():
                return
        except (urllib.error.URLError, ConnectionError):
            pass  # it starts
        assert time.monotonic() < until, missing
        time.sleep(0.5)


@pytest.fixture
def training() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.integrations.observed_run"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def step(training: subprocess.Popen[str], kind: str) -> str:
    assert training.stdin is not None
    assert training.stdout is not None
    training.stdin.write(f"{kind}\n")
    training.stdin.flush()
    return training.stdout.readline().strip()


@pytest.mark.slow
def test_a_real_prometheus_sees_a_skipped_step_and_its_alert_fires(
    training: subprocess.Popen[str], tmp_path: Path
) -> None:
    program("prometheus")
    assert training.stdout is not None
    server = Prometheus(tmp_path, int(training.stdout.readline()))
    try:
        assert [step(training, "good") for _ in range(3)] == ["apply"] * 3
        wait_for(lambda: server.values('halfguard_steps_total{action="apply"}') == [3])
        assert server.values('ALERTS{alertname="HalfguardBadBatch"}') == []

        assert step(training, "bad") == "skip"
        skipped = 'halfguard_skipped_steps_total{cause="bad_batch"}'
        wait_for(lambda: server.values(skipped) == [1])
        firing = 'ALERTS{alertname="HalfguardBadBatch", alertstate="firing"}'
        wait_for(lambda: server.values(firing) == [1])
        # A quarter of these few steps was skipped: that alert is pending, since it must last.
        (alert,) = [a for a in server.get("alerts")["alerts"] if a["state"] == "firing"]
        assert alert["labels"]["cause"] == "bad_batch"
        assert "was bad and was skipped" in alert["annotations"]["summary"]
        assert all(rule["health"] == "ok" for rule in server.get("rules")["groups"][0]["rules"])
        assert step(training, "good") == "apply"
        for title, expression in panel_queries():
            wait_for(lambda: server.values(expression), f"the panel {title!r} is empty")  # noqa: B023
    finally:
        server.close()


def panel_queries() -> list[tuple[str, str]]:
    """Return each panel's queries as Grafana sends them for all jobs."""
    variables = {"$job": ".*", "$instance": ".*", "$__rate_interval": "1m"}

    def filled(expression: str) -> str:
        for name, value in variables.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        return expression

    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], filled(t["expr"])) for panel in panels for t in panel["targets"]]


def test_the_reference_lists_every_name_with_its_meaning() -> None:
    page = (ROOT / "docs/how-to/trackers.md").read_text()
    rows = [
        tuple(line.strip("| ").split(" | ")) for line in page.splitlines() if "| `halfg" in line
    ]
    logged = [(f"`{name}`", meaning) for name, meaning in ({**METRICS, **WATCH_METRICS}).items()]
    observed = [
        (f"`{i.name}`", "counter" if i.counts else "gauge", i.description) for i in INSTRUMENTS
    ]
    assert rows[: len(logged)] == logged
    assert [row[:3] for row in rows[len(logged) :]] == [
        (name, kind, meaning) for name, kind, meaning in observed
    ]
