"""``python -m fedcrab`` is the same program as ``fedcrab``."""

from __future__ import annotations

from fedcrab.cli import main

if __name__ == "__main__":
    main()
