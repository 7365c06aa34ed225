"""All default numbers, each said once.

The engine has those of serving as well (`llama-ridgefill-maps.h`); a test compares them.
"""

from __future__ import annotations

# serving: where neither the caller nor the maps file says anything
SINK = 4
TAIL = 256
MIN_PROMPT = 1024
BUDGET = 0.05  # share of the filled rows that is selected
POOL = (5, 5)  # rows before and after a row over which its score halves
QUERIES = 512

# tokens of a chunk of calibration text, and of a prompt in a measurement
CTX = 2048
UBATCH = 512

# calibration
SPLIT_SHARES = (1 / 3, 5 / 12, 1 / 2, 2 / 3)  # of the layers, for splits that are tried
TOKENS = 50_000
HELD_OUT = 0.1  # share of the documents
SKIP_FIRST = 4
MASSIVE_RATIO = 20.0
CHECKPOINT_SECONDS = 300.0
MEAN_TOKENS = 8192  # for the baseline `mean`

# retrieval heads: how many, and how many prompts find them in a command and within a calibration
HEADS = 3
HEAD_PROMPTS = 4
HEAD_PROMPTS_CALIBRATE = 2
HEAD_LENGTHS = (1024, 2048)

# settings that are tried for a recommendation
BUDGETS = (0.05, 0.10, 0.20)
MAX_LOSS_INCREASE = 0.03  # relative, of the loss on the exact tail
