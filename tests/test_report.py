"""report.html: complete, escaped, self-contained, and at home in a browser of any size and colour scheme."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from browser import Browser, find_browser
from commands import FAST, call, options
from spikegcl import protocol
from spikegcl.config import Config
from spikegcl.datasets import load_dataset
from spikegcl.graph import build_graph
from spikegcl.report import draw_report, write_report
from spikegcl.report.facts import truncations
from spikegcl.report.svg import Axis, bitmap, nice_ticks
from spikegcl.runs import Source, open_run, write_metrics, write_run

EVIL = "<script>alert(1)</script>"
ALWAYS = {"map", "neighbours", "raster", "firing", "bit-rates", "loss", "gradient-norms", "sizes", "energy"}
LABELLED = ALWAYS | {"accuracy", "curve"}
CONFIG = Config(epochs=3, channels=8, steps=4)


def make_graph(*, labels=True, ids=None, nodes=150, classes=3):
    graph = load_dataset(f"sbm:nodes={nodes},classes={classes},num_features=16,degree=4")
    names = [f"class {label}" if label else f"{EVIL} & \"'" for label in graph.labels]
    return build_graph(
        graph.adjacency,
        graph.features,
        labels=names if labels else None,
        ids=[f"{EVIL}{i}" for i in range(nodes)] if ids is None else ids,
        name=EVIL,
    )


def make_run(folder, graph, config=CONFIG, *, seeds=1):
    """A run folder of a graph in memory."""
    folder.mkdir()
    judged = [protocol.run_seed(graph, config, seed) for seed in range(seeds)]
    rows = [one.row for one in judged]
    metrics = {**protocol.summarise(rows), "preset": "default", "run": str(folder), "rows": rows}
    write_run(folder, graph, judged[0].trained, Source(name="sbm"), seed=0, preset="default")
    write_metrics(folder, metrics)
    return open_run(folder)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a labelled graph whose name, ids and classes are markup."""
    graph = make_graph()
    run = make_run(tmp_path_factory.mktemp("report") / "run", graph, seeds=2)
    return write_report(run, graph)


@pytest.fixture(scope="module")
def bare_page(tmp_path_factory):
    """The report of a graph without labels, after a single epoch."""
    graph = make_graph(labels=False, ids=np.arange(150))
    run = make_run(tmp_path_factory.mktemp("report") / "bare", graph, Config(epochs=1, channels=5, steps=3))
    return write_report(run, graph)


@pytest.fixture(scope="module")
def photo_page(tmp_path_factory, data_root):
    """The report that training on Photo leaves in its run folder."""
    folder = tmp_path_factory.mktemp("report") / "photo"
    settings = ("--preset", "paper", "--set", "epochs=2", "--data-root", data_root)
    assert call("train", "photo", *settings, "-o", folder) == 0
    return folder / "report.html"


@pytest.fixture(scope="module")
def compact_page(tmp_path_factory):
    """The report of a code that was found without gradients."""
    folder = tmp_path_factory.mktemp("report") / "compact"
    assert call("demo", "-o", folder) == 0
    return folder / "report.html"


FIGURES = {
    "page": LABELLED,
    "bare_page": ALWAYS,
    "photo_page": LABELLED | {"val-accuracy"},
    "compact_page": LABELLED - {"loss", "gradient-norms"},
}


@pytest.fixture(scope="module")
def browser():
    executable = find_browser()
    if executable is None:
        pytest.skip("needs Chromium to open the report; install it with `apt-get install chromium`")
    opened = Browser(executable)
    yield opened
    opened.close()


def figures(text):
    return set(re.findall(r'data-figure="([^"]+)"', text))


SCREENS = {"desktop": (1280, 900, False), "phone": (390, 844, True)}
# A figure counts only if it takes room on the page, and a drawing only if it has something in it.
VISIBLE = """[...document.querySelectorAll('[data-figure]')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width > 100 && box.height > 50 && e.childElementCount > 0;
}).map(e => e.dataset.figure)"""
SCROLLS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
BACKGROUND = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
# Letters of the smallest axis text, in pixels on the screen.
LETTERS = """Math.min(...[...document.querySelectorAll('svg[viewBox] text')].map(e =>
  parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getScreenCTM().a))"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("kind", FIGURES)
def test_opens_without_errors_and_with_all_figures(request, browser, kind, screen, dark):
    path = request.getfixturevalue(kind)
    width, height, mobile = SCREENS[screen]
    browser.open(path, width, height, dark=dark, mobile=mobile)
    assert set(browser.evaluate(VISIBLE)) == FIGURES[kind]
    assert browser.evaluate(SCROLLS) is False
    assert (sum(browser.evaluate(BACKGROUND)) < 200) is dark
    assert browser.evaluate(LETTERS) >= 8
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [path.as_uri()]


def test_pointing_at_a_node_shows_its_id_as_text(browser, page):
    browser.open(page, 1280, 900, dark=False)
    shown = browser.evaluate(
        """(() => {
          const data = JSON.parse(document.getElementById("data").textContent);
          const map = document.querySelector('[data-figure="map"]');
          const [x, y] = data.map.at[0], at = new DOMPoint(x, y).matrixTransform(map.getScreenCTM());
          map.dispatchEvent(new PointerEvent("pointermove", { clientX: at.x, clientY: at.y }));
          const tip = document.getElementById("tip");
          return [tip.hidden, tip.textContent, tip.childElementCount, data.map.id];
        })()"""
    )
    hidden, text, children, ids = shown
    assert (hidden, children) == (False, 0)
    assert text.split(" · ")[0] in ids
    assert EVIL in text
    assert browser.errors == []


def test_choosing_a_class_dims_the_others(browser, page):
    browser.open(page, 390, 844, dark=True, mobile=True)
    dimmed = "document.querySelectorAll('.mark.dim').length"
    browser.evaluate("document.querySelector('button[data-class]').click()")
    assert browser.evaluate(dimmed) == 2
    browser.evaluate("document.querySelector('button[data-class]').click()")
    assert browser.evaluate(dimmed) == 0


def test_the_browser_of_these_tests_hears_errors(browser, tmp_path):
    path = tmp_path / "broken.html"
    path.write_text("<script>console.error('one'); nothing.at.all</script><img src='missing.png'>")
    browser.open(path, 800, 600, dark=False)
    heard = " ".join(browser.errors)
    assert "one" in heard
    assert "ReferenceError" in heard
    assert any(url.endswith("missing.png") for url in browser.requests)


def test_markup_in_names_ids_and_classes_stays_text(page):
    text = page.read_text("utf-8")
    assert EVIL not in text
    assert text.count("<script") == 2
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "\\u003cscript" in text


def test_nothing_is_loaded_from_elsewhere(page):
    text = page.read_text("utf-8")
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert "url(" not in text
    assert "@import" not in text


def test_without_labels_sentences_stand_in_for_figures(bare_page):
    text = bare_page.read_text("utf-8")
    assert figures(text) == ALWAYS
    assert "came without labels" in text


def test_one_run_gives_one_page(page):
    graph = make_graph()
    assert draw_report(open_run(page.parent), graph) == page.read_text("utf-8")


def test_every_setting_is_listed(page):
    text = page.read_text("utf-8")
    for name in ("channels", "neuron", "edge_drop", "weight_decay", "select"):
        assert f"<code>{name}</code>" in text


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"nodes": 30, "classes": 2}, {"epochs": 0}),
        ({"nodes": 130, "classes": 13}, {"epochs": 1, "steps": 1, "channels": 3}),
    ],
    ids=["untrained", "many classes, one step"],
)
def test_unusual_runs_have_a_page(tmp_path, changes, settings):
    graph = make_graph(**changes)
    text = draw_report(make_run(tmp_path / "run", graph, Config(**{"channels": 4, "steps": 2, **settings})), graph)
    assert figures(text) >= LABELLED - {"loss", "gradient-norms"}
    assert "nan" not in re.sub(r"base64,[^\"]*", "", text)


def test_nodes_without_label_are_drawn_and_named(tmp_path):
    graph = make_graph()
    labels = np.where(np.arange(150) % 3 == 0, -1, graph.labels)
    graph = graph.with_labels(labels)
    text = draw_report(make_run(tmp_path / "run", graph), graph)
    assert figures(text) == LABELLED
    assert "no label" in text


def test_train_writes_it_and_report_draws_it_again(run, trained_run, files):
    written = (trained_run / "report.html").read_text("utf-8")
    code, out, _ = run("report", trained_run, "-o", "again.html", "--json")
    assert code == 0
    again = Path("again.html")
    assert json.loads(out)["bytes"] == again.stat().st_size
    assert again.read_text("utf-8") == written
    assert run("train", *options(files[1]), *FAST, "--no-report", "-o", "r")[0] == 0
    assert not Path("r/report.html").exists()


def test_a_report_that_fails_does_not_cost_the_run(run, files, monkeypatch, caplog):
    def fail_with(error):
        def gather(*_):
            raise error

        monkeypatch.setattr("spikegcl.report.gather", gather)

    train = ["train", *options(files[1]), *FAST, "-o"]
    fail_with(OSError("disk full"))
    assert run(*train, "a")[0] == 0
    assert "report.html was not drawn (disk full)" in caplog.text
    fail_with(ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        run(*train, "b")
    for folder in ("a", "b"):
        assert Path(folder, "codes.arrow").is_file()
        assert not Path(folder, "report.html").exists()


def test_a_graph_of_other_nodes_is_an_error(page):
    from spikegcl.errors import RunError

    with pytest.raises(RunError, match="restore the files"):
        draw_report(open_run(page.parent), make_graph(ids=np.arange(150)))


def test_truncations_end_with_all_steps():
    for steps in range(1, 100):
        kept = truncations(steps)
        assert kept[0] == 1
        assert kept[-1] == steps
        assert len(kept) <= 5


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.31, 0.33), (-15, 6), (5, 5), (0, 0), (1e-9, 3e-9)])
def test_ticks_are_few_and_hold_the_range(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low + 1e-12
    assert ticks[-1] >= high - 1e-12
    assert 2 <= len(ticks) <= 8


@pytest.mark.parametrize("values", [[0.0], [100.0], [99.9, 100.0], [20.0, 90.0], [50.0]])
def test_axes_of_per_cent_span_ten_points_within_the_possible(values):
    axis = Axis.percentages("", values)
    assert 0 <= axis.low <= min(values)
    assert max(values) <= axis.high <= 100
    assert axis.high - axis.low >= 10


def test_bitmap_is_a_png():
    assert bitmap(np.eye(3, 10, dtype=np.uint8), (1, 2, 3)).startswith("data:image/png;base64,iVBORw0KGgo")


def test_a_run_whose_log_is_lost_says_so(run, trained_run, tmp_path):
    shutil.copytree(trained_run, tmp_path / "r")
    (tmp_path / "r" / "log.jsonl").unlink()
    code, _, err = run("report", "r")
    assert code == 1
    assert "log.jsonl cannot be read" in err
