import os

# Tests work on small tensors, where more threads only wait for each other. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# The first call of torch is slow and CI machines are busy: time is no property of the code under test.
settings.register_profile("pflego", deadline=None, derandomize=True, database=None)
settings.load_profile("pflego")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever tests read is cached where they put it, not among a user's own files."""
    os.environ["PFLEGO_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests begin first, wherever there is room; the others share a worker with their file, and its fixtures."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        alone = item.get_closest_marker("slow") is not None
        item.add_marker(pytest.mark.xdist_group(item.nodeid if alone else str(item.path)))
