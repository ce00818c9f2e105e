"""The workflows: small rights, actions named by their major version, and nothing that this repository lacks."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WRITES = {("publish", "pages"): {"pages", "id-token"}, ("publish", "release"): {"contents"}}  # and no other job


def steps(path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


def test_a_job_may_write_only_what_it_publishes():
    for path in WORKFLOWS:
        said = yaml.safe_load(path.read_text())
        assert said["permissions"] == {"contents": "read"}
        for name, job in said["jobs"].items():
            written = {what for what, right in job.get("permissions", {}).items() if right == "write"}
            assert written == WRITES.get((path.stem, name), set())


def test_actions_are_those_of_github_at_a_major_version():
    for path in WORKFLOWS:
        used = [step["uses"] for step in steps(path) if "uses" in step]
        assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used)


def test_what_they_run_is_there():
    check, nightly, publish = ("\n".join(step.get("run", "") for step in steps(path)) for path in WORKFLOWS)
    assert ".ci/run" in check.split() and os.access(ROOT / ".ci" / "run", os.X_OK)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"make ([a-z]+)", publish)) == {"book"} and {"book", "nightly", "setup"} <= targets
    assert "make nightly" in nightly.splitlines()


def test_their_form_is_that_of_the_published_schema():
    if not (tool := shutil.which("check-jsonschema")):
        pytest.skip("check-jsonschema is not installed: pip install check-jsonschema checks the form of workflows.")
    command = [tool, "--builtin-schema", "vendor.github-workflows", *WORKFLOWS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
