"""How property tests draw examples; `pytest --hypothesis-profile explore` draws new ones, and ten times as
many.
"""

import os

# Before torch is imported: two threads in each of two test processes spin on each other's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# The same examples each time, and no deadline: a red suite then means a change, not an unlucky draw or a busy
# machine. What `explore` finds becomes an @example.
settings.register_profile("fixed", max_examples=50, derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=500, deadline=None, print_blob=True)
settings.register_profile("mutation", max_examples=8, derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")
