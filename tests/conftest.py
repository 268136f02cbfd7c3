import os

# Tests work on small tensors, where more threads only wait for each other. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# The first call of torch is slow and CI machines are busy: time is no property of the code under test.
settings.register_profile("pflego", deadline=None, derandomize=True, database=None)
settings.load_profile("pflego")
