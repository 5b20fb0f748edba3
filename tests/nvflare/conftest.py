import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'fedcrab[nvflare]'")
sys.path.append(str(Path(__file__).parent))
