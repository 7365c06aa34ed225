from __future__ import annotations

import sys
from pathlib import Path

# `support` is shared by the test folders, whatever import mode pytest runs in
sys.path.insert(0, str(Path(__file__).parent))
