"""What maintainers rely on: the check of a release, workflows, labels and hooks."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from fer_vit.version import __version__

ROOT = Path(__file__).parents[1]
RELEASE: dict[str, Any] = runpy.run_path(str(ROOT / ".ci/release.py"))
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def checkout(folder: Path, version: str, changelog: str) -> Path:
    """A project with the files that name a version."""
    (folder / "fer_vit").mkdir()
    (folder / "fer_vit/version.py").write_text(f'__version__ = "{version}"\n')
    (folder / "CITATION.cff").write_text(f"title: fer-vit\nversion: {version}\nlicense: x\n")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{changelog}\n\n## 0.1.0\n\nFirst.\n")
    return folder


def test_a_release_has_one_version_and_notes(tmp_path: Path) -> None:
    root = checkout(tmp_path, "0.2.0", "## 0.2.0\n\n### Model\n\n- New.")
    assert RELEASE["find_problems"](root, "v0.2.0") == []
    assert RELEASE["read_notes"](root, "0.2.0") == "### Model\n\n- New."
    assert RELEASE["read_notes"](root, "0.1.0") == "First."
    assert RELEASE["read_notes"](root, "0.3.0") == ""


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "file"),
    [
        ("0.2.0", "0.2.0", "## 0.2.0\n\n- New.", "v0.2.0"),
        ("v0.2", "0.2", "## 0.2\n\n- New.", "v0.2.0"),
        ("v0.2.0", "0.2.0.dev0", "## 0.2.0\n\n- New.", "version.py"),
        ("v0.2.0", "0.2.0", "## 0.2.0 (unreleased)\n\n- New.", "CHANGELOG.md"),
        ("v0.2.0", "0.2.0", "## 0.2.0", "CHANGELOG.md"),
    ],
)
def test_a_release_that_is_not_ready(
    tmp_path: Path, tag: str, version: str, changelog: str, file: str
) -> None:
    root = checkout(tmp_path, version, changelog)
    assert file in " ".join(RELEASE["find_problems"](root, tag))


def test_the_citation_of_another_version_stops_a_release(tmp_path: Path) -> None:
    root = checkout(tmp_path, "0.2.0", "## 0.2.0\n\n- New.")
    (root / "CITATION.cff").write_text("title: fer-vit\nversion: 0.1.0\n")
    assert "CITATION.cff" in " ".join(RELEASE["find_problems"](root, "v0.2.0"))


def test_the_version_is_read_from_the_package() -> None:
    assert RELEASE["read_version"](ROOT) == __version__


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_pinned_and_may_do_little(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    permissions = workflow["permissions"] or {}
    assert set(permissions.values()) <= {"read"}

    for job in workflow["jobs"].values():
        writes = {name for name, right in job.get("permissions", {}).items() if right == "write"}
        commands = [step["run"] for step in job["steps"] if "run" in step]
        # who may write runs no code of this project or of its dependencies
        assert not writes or all(command.startswith("gh ") for command in commands)

    for action in re.findall(r"uses: (.*)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", action), action

    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    named = re.findall(r"run: make ([\w-]+)", text) + re.findall(r"\btest-\w+", text)
    assert set(named) <= set(targets)


def test_the_release_publishes_without_a_password() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in str(jobs)
    assert jobs["publish"]["needs"] == "build"


def test_labels_of_issues_exist() -> None:
    labels = yaml.safe_load((ROOT / ".github/labels.yml").read_text())
    names = {label["name"] for label in labels}
    assert len(names) == len(labels)
    assert all(re.fullmatch("[0-9a-f]{6}", label["color"]) for label in labels)
    for template in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"):
        _, head, _ = template.read_text(encoding="utf-8").split("---\n", 2)
        assert yaml.safe_load(head)["labels"] in names


def test_hooks_run_the_tools_of_make_test() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"  # nothing is cloned
    for hook in repository["hooks"]:
        if hook["language"] == "system":
            assert f"$(BIN)/{hook['entry'].removeprefix('.venv/bin/')}" in makefile
        else:
            assert all("==" in package for package in hook["additional_dependencies"])


def test_the_container_copies_what_its_commands_need() -> None:
    """Files that the Dockerfile's build reads are not ignored."""
    kept = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M))
    read = set(re.findall(r"/source/([\w.]+)", (ROOT / "Dockerfile").read_text()))
    project = (ROOT / "pyproject.toml").read_text()
    read |= set(re.findall(r'^license-files = \["(\w+)", "(\w+)"\]$', project, re.M)[0])
    assert read | {"fer_vit", "pyproject.toml", "README.md"} <= kept
