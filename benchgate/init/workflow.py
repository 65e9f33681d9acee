"""The workflow of GitHub Actions that runs a first suite: it calls benchgate's own, which measures and tells."""

from __future__ import annotations

from collections.abc import Sequence

CALLED = "OWNER/benchgate/.github/workflows/gate.yml@COMMIT"
"""Stands where whoever uses the workflow says which benchgate they trust: GitHub refuses it as it is."""

_TEXT = """\
# Written by `benchgate init`; what each part is for: docs/github-actions.md of benchgate.
name: benchgate

# By hand. Where a pull request says what is to be promoted, `on: pull_request`, and require its check
# `benchgate / verdict`: GitHub counts a required job that was skipped as a success, and that one always runs.
on: workflow_dispatch

permissions: {{}}

jobs:
  benchgate:
    uses: {called} # the repository, and the full commit of the release that you checked
    permissions:
      contents: read
      pull-requests: write # the comment, on a pull request
      checks: write # the check run
    with:
      suite: {suite}
      waivers: {waivers}
      timeout-minutes: 180
      # runner: my-runner # where the load comes from: one that reaches both deployments, with nothing else running
      # environment: production # the promotion waits for its rules, and is recorded
"""

_SECRETS = """\
    secrets:
      variables: | # secrets of this repository, named in the suite as ${env:NAME}
"""


def workflow_text(*, suite: str, waivers: str, variables: Sequence[str]) -> str:
    """The workflow. `variables` are those that the suite refers to: each comes from a secret of its name."""
    whole = _TEXT.format(called=CALLED, suite=suite, waivers=waivers)
    lines = [f"        {name}=${{{{ secrets.{name} }}}}\n" for name in dict.fromkeys(variables)]
    return whole + (_SECRETS + "".join(lines) if lines else "")
