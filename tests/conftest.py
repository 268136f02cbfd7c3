from hypothesis import settings

# The first call of torch is slow and CI machines are busy: time is no property of the code under test.
settings.register_profile("pflego", deadline=None, derandomize=True, database=None)
settings.load_profile("pflego")
