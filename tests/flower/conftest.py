"""The helpers and the app of these trials are found by name, and nothing asks the network."""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "siteapp")]
pytest.importorskip("flwr")

from deployment import QUIET  # noqa: E402

os.environ.update({name: value for name, value in QUIET.items() if name.startswith(("FLWR", "RAY"))})
