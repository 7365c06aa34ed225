from __future__ import annotations

import sys
from pathlib import Path

# helper modules of this folder, whatever import mode pytest runs in
sys.path.insert(0, str(Path(__file__).parent))
