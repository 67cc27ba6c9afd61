import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from longshore.eval.comparison import Comparison, compare
from longshore.eval.figures import MAX_GPU_ROWS, Picture, forest_picture, gantt_picture, policy_colours, report_pictures
from longshore.eval.report import summary, write_json, write_report
from longshore.eval.table import table_rows
from tests.eval.runs import CLUSTER_GPUS, EVENTS, GPU_NODE, comparison, finishes, outcome, policies, scenarios

LEARNED = "<b>ppo</b> $x$"
FACTS = {"command": "longshore compare --policy '<ppo>' && true", "fault seeds": "0 to 11", "date": "2026-11-21"}
VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Text, tags and addresses of a page; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags, self.addresses, self.open = "", set[str](), list[str](), list[str]()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def drawn(count: int) -> list[Picture]:
    return report_pictures(
        comparison(count),
        policies(count),
        scenarios(count),
        events={LEARNED: EVENTS, "pack": EVENTS},
        scenario_text="scenario 17 of 200",
        gpu_node=GPU_NODE,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, comparison(12), drawn(12), title="Pack & <i>ppo</i>", facts=FACTS)
    return path.read_text(encoding="utf-8")


def test_the_page_needs_nothing_but_itself(source: str) -> None:
    page = Page(source)
    assert page.open == []
    assert page.addresses
    assert all(address.startswith("data:") for address in page.addresses)
    assert not re.search(r"https?://|@import|url\(", source)
    assert not page.tags & {"script", "iframe", "object", "i", "b"}


@pytest.mark.full
def test_the_page_shows_the_same_cells_as_the_terminal(source: str) -> None:
    text = Page(source).text
    for row in table_rows(comparison(12)):
        assert row.policy in text
        assert all(cell.text in text for cell in (*row.cells, row.versus))
    assert all(metric.meaning in text for metric in comparison(12).metrics)


def test_the_page_shows_what_was_run_and_where_the_policy_loses(source: str) -> None:
    text = Page(source).text
    assert all(name in text and value in text for name, value in FACTS.items())
    assert "Pack & <i>ppo</i>" in text
    assert "Where it loses" in text
    assert "Worse makespan than pack in" in text
    assert "out of service, in scenario 17 of 200." in text
    assert "Scenario 17 of 200. Each row is a GPU" in text


@pytest.mark.full
def test_the_same_comparison_gives_the_same_pictures() -> None:
    assert drawn(3) == drawn(3)


@pytest.mark.parametrize("nodes", [MAX_GPU_ROWS, MAX_GPU_ROWS * 8])
def test_large_clusters_are_drawn_node_by_node(nodes: int) -> None:
    picture = gantt_picture({"pack": EVENTS}, np.arange(nodes, dtype=np.int32) // 8, scenario_text="scenario 3 of 7")
    assert picture.data.startswith(b"\x89PNG")
    assert ("Each row is a node" in picture.caption) == (nodes > MAX_GPU_ROWS)
    assert picture.caption.startswith("Scenario 3 of 7. ")


def test_learned_policies_and_the_best_heuristic_have_colours_of_their_own() -> None:
    colours = policy_colours(comparison(3))
    assert len(set(colours.values())) == 3


def test_one_policy_in_one_scenario_is_a_report_too(tmp_path: Path) -> None:
    runs = {"pack": outcome(finishes(1))}
    alone = compare(runs, scenarios(1), CLUSTER_GPUS, heuristics=runs)
    shown = report_pictures(alone, runs, scenarios(1), events={"pack": EVENTS}, scenario_text="w", gpu_node=GPU_NODE)
    write_report(tmp_path / "report.html", alone, shown, title="pack", facts={})
    text = Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "Only pack was run, in 1 scenario." in text
    assert "nan" not in text


@pytest.mark.parametrize("count", [1, 12])
def test_the_json_file_holds_the_same_figures(tmp_path: Path, count: int) -> None:
    found: Comparison = comparison(count)
    write_json(tmp_path / "report.json", found, title="t", facts=FACTS)
    document = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert (document["objective"], document["best_heuristic"], document["facts"]) == ("makespan_s", "pack", FACTS)
    for row, name in enumerate(found.policies):
        figures = document["policies"][name]
        for column, metric in enumerate(found.metrics):
            assert figures["mean"][metric.name]["value"] == found.mean.value[row, column]
            assert (figures["mean"][metric.name]["low"] is None) == (count == 1)
    assert document["wins"][LEARNED]["pack"] == found.wins[0, 1]


def test_the_summary_does_not_call_a_win_what_is_not_clear() -> None:
    base, noise = finishes(20), np.random.default_rng(9).normal(1.0, 0.2, (20, 1))
    runs = {"pack": outcome(base), "ppo": outcome(base * noise)}
    text = summary(compare(runs, scenarios(20), CLUSTER_GPUS, heuristics=["pack"]))
    assert "ppo is not clearly different from pack, the best of 1 heuristic:" in text
    assert f"{LEARNED} is better than pack" in summary(comparison(20))


def test_no_mark_is_cut_at_the_edge_of_a_panel_and_a_cut_interval_has_an_arrow() -> None:
    base, noise = finishes(8), np.random.default_rng(1)
    scales = {"pack": (1.0, 0.0), "eft": (1.1, 0.02), "spread": (1.12, 0.02), "random": (1.05, 0.6), "worst": (2, 0.1)}
    runs = {
        name: outcome(base * noise.normal(mean, spread, (8, 1)).clip(0.2)) for name, (mean, spread) in scales.items()
    }
    runs["ppo"] = outcome(base * 0.95)
    found = compare(runs, scenarios(8), CLUSTER_GPUS, heuristics=[*scales])

    tree = ElementTree.fromstring(forest_picture(found).data.decode())

    svg, link = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
    panels = {clip.get("id"): clip.find(f"{svg}rect") for clip in tree.iter(f"{svg}clipPath")}
    shapes = {path.get("id"): path.get("d") or "" for path in tree.iter(f"{svg}path") if path.get("id")}
    marks = [
        (panels[(group.get("clip-path") or "")[5:-1]], mark)
        for group in tree.iter(f"{svg}g")
        if group.get("clip-path")
        for mark in group.iter(f"{svg}use")
    ]
    for panel, mark in marks:
        assert panel is not None
        left, width, at = (float(it or "nan") for it in (panel.get("x"), panel.get("width"), mark.get("x")))
        assert left + 3.0 < at < left + width - 3.0  # a mark is 5.5 points wide
    arrows = [mark for _, mark in marks if "C" not in shapes[(mark.get(link) or "")[1:]]]  # no circle
    assert arrows
