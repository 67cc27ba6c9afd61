"""What is shipped for Prometheus and Grafana."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.scheduler.metrics_page import documented
from tests.support import processes

FOLDER = Path(__file__).parent.parent.parent / "deploy" / "monitoring"
NAME = re.compile(r"\blongshore_\w+")
promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="no promtool here; on Debian: apt-get install prometheus"
)


def names_of(queries: list[str]) -> set[str]:
    """Return the metrics that queries ask for."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for query in queries for name in NAME.findall(query)}


def grafana_queries() -> list[str]:
    board: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def alerts() -> Iterator[dict[str, str]]:
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]:
        yield from group["rules"]


def test_queries_and_rules_ask_only_for_metrics_that_there_are() -> None:
    asked = names_of([*grafana_queries(), *(rule["expr"] for rule in alerts())])

    assert asked - set(documented()) == set()


def test_every_metric_is_on_the_dashboard_of_grafana() -> None:
    assert set(documented()) - names_of(grafana_queries()) == {"longshore_build_info", "longshore_store_up"}


def test_every_alert_has_a_test() -> None:
    tested = re.findall(r"alertname: (\w+)", (FOLDER / "alerts_test.yml").read_text())

    assert {rule["alert"] for rule in alerts()} == set(tested)


@promtool
@pytest.mark.parametrize("command", [["test", "rules", "alerts_test.yml"], ["check", "config", "prometheus.yml"]])
def test_promtool_accepts(command: list[str]) -> None:
    done = processes.run(["promtool", *command], cwd=FOLDER, capture_output=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_promtool_reads_every_query_of_grafana(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m").replace("$instance", ".*")}
        for number, query in enumerate(grafana_queries())
    ]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))

    done = processes.run(["promtool", "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
