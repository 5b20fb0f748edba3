"""The page's arithmetic run by node, without a page."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedcrab.report.page import ARITHMETIC, asset

NODE = shutil.which("node")
DRIVER = """
const { facts, queries } = JSON.parse(require("fs").readFileSync(process.argv[2], "utf8"));
const page = readPage(facts);
const answers = queries.map(({ malicious, since = {}, ...settings }) => {
  const marked = new Set(malicious.map((id) => facts.clients.indexOf(id)));
  const refused = undecidable(page, marked, settings.beta);
  if (refused) return { refused };
  const rounds = new Map(Object.entries(since).map(([id, round]) => [facts.clients.indexOf(id), round]));
  if (facts.together.length) rounds.set(TOGETHER, since[facts.together[0]] ?? 0);
  const made = makePlan(page, marked, { ...settings, since: rounds });
  return {
    ...made,
    replay: made.replay.map((s) => [s.round, s.clients.map((c) => facts.clients[c]), s.others]),
    asks: Object.fromEntries(facts.methods.map((m) => [m.name, plannedAsks(page, m, made, marked)])),
    shares: Object.fromEntries([...made.shares].map(([c, share]) => [facts.clients[c], share])),
  };
});
process.stdout.write(JSON.stringify(answers));
"""


def plans_in_node(facts: dict[str, Any], queries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page would answer to each question."""
    with tempfile.TemporaryDirectory() as place:
        program, question = Path(place) / "page.js", Path(place) / "question.json"
        program.write_text('"use strict";\n' + "\n".join(asset(name) for name in ARITHMETIC) + DRIVER)
        question.write_text(json.dumps({"facts": facts, "queries": list(queries)}))
        done = subprocess.run([str(NODE), program, question], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers
