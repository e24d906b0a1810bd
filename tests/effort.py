"""How much the tests try: `ELASTIC_TEST_EFFORT`, 1 unless set, 10 in `make nightly`.

At 1 the drawn cases are the same ones each time: a change fails for what it did, never for a case that an unlucky draw
found. Above, they are drawn anew, and what is dear is tried so many times as often.
"""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("ELASTIC_TEST_EFFORT", "1"))
