"""What the README and the examples show works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(*arguments, folder):
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_quick_start_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    assert "codes of" in run("-c", block, folder=tmp_path)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example, tmp_path):
    assert run(str(example), folder=tmp_path)


def test_every_relative_link_of_the_docs_leads_somewhere():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:\s]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} -> {target}"
