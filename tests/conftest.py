"""Every run of the suite draws the same cases, so that what passes once passes on every machine.

`HYPOTHESIS_PROFILE=random pytest` draws new ones: how bugs are looked for, not how changes are judged.
"""

import os

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("random")
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
