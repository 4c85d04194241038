"""What the README, the examples and the pages of the site show works as it stands."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import spikegcl
from spikegcl import cli
from spikegcl.readers import write_graph

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_python(*arguments, folder):
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_quick_start_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    assert "codes of" in run_python("-c", block, folder=tmp_path)


def test_the_numbers_of_the_readme_are_those_of_the_rows():
    """Its table is a part of the one that `make results` draws."""
    drawn = {
        cells[0]: (cells[1].replace(" bits", ""), *(cells[column].rpartition(" (")[0] for column in (4, 7)))
        for cells in table_of(ROOT / "results/frontier-printed.md")[1:]
    }
    assert {cells[0].lower(): tuple(cells[1:]) for cells in table_of(ROOT / "README.md")[1:]} == drawn


def table_of(page):
    lines = [line for line in page.read_text().splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    assert run_python(str(example), folder=tmp_path)


def test_every_relative_link_of_the_docs_leads_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} -> {target}"


def test_every_command_is_documented_and_the_examples_run(run, community, files, tmp_path):
    text = (ROOT / "docs/commands.md").read_text()
    commands = {command.callback.__name__ for command in cli.app.registered_commands}
    assert set(re.findall(r"^## (.+)$", text, flags=re.MULTILINE)) == commands
    write_graph(files[0], tmp_path)
    grown = write_graph(community, tmp_path / "grown")
    grown["edges"].rename(tmp_path / "grown.csv")
    grown["features"].rename(tmp_path / "grown-features.csv")
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        for line in block.splitlines():
            code, _, err = run(*shlex.split(line)[1:])
            assert code == 0, f"{line}\n{err}"


def test_every_public_name_is_documented_and_every_documented_name_exists():
    text = (ROOT / "docs/api.md").read_text()
    first, rest = text.split("## In modules")
    assert set(re.findall(r"^\| `(\w+)` \|", first, flags=re.MULTILINE)) == set(spikegcl.__all__)
    for name in re.findall(r"`(spikegcl\.[\w.]+)`", rest):
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name
    children = {kind.__name__ for kind in spikegcl.errors.SpikeGCLError.__subclasses__()}
    assert set(re.findall(r"`(\w+Error)`", rest)) == children


def test_every_page_of_the_site_exists():
    nav = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE)
    assert {page.name for page in (ROOT / "docs").glob("*.md")} == {page for page in nav if "/" not in page}
    for page in nav:
        assert (ROOT / ("" if page.startswith("results/") else "docs") / page).is_file(), page
