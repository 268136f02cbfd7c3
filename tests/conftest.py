import os
import shutil
import signal
from functools import cache
from pathlib import Path

# Tests work on small tensors, where more threads only wait for each other. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell, which programs inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Thousands of files are flushed to disk and removed again: to memory, where it has room for them and lets programs run.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4e9 and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# The first call of torch is slow and CI machines are busy: time is no property of the code under test.
settings.register_profile("pflego", deadline=None, derandomize=True, database=None)
settings.load_profile("pflego")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever tests read is cached where they put it, not among a user's own files."""
    os.environ["PFLEGO_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def onnx_operators() -> None:
    """Every export to ONNX lists its thousands of operators anew, for a second: here the first list is kept."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    ONNXRegistry.from_torchlib = staticmethod(cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests begin first."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file's tests share a worker, and their fixtures.

    A page of documentation is as long as a file by itself. Federations of real processes below a folder take turns:
    they look for messages many times a second while they wait, and many at once would mostly wait for each other.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        if file.endswith("test_docs.py"):
            return nodeid
        if "/test_processes" in file:
            return "/".join(file.split("/")[:2])  # tests/deploy, tests/light, tests/web
        return str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)  # xdist may be switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Who runs what, where there are several workers."""
    return ByFile(config, log)
