import json
import os
import stat
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest
from fib_bench.caches import FOLDER, CacheOwner, own_cache
from fib_bench.judge.functions import FunctionWorker
from fib_bench.timing.handshake.native import module_folder
from fib_bench.transport.messages import Build, OpenDevice
from fib_bench.worker.client import WorkerLost
from fib_compile import BuilderRegistry
from fib_schema import format_json

from .samples import DOUBLE, make_solution

OTHER_UID = 60_599
CPP = """
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
void Nothing(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Nothing);
"""


@pytest.fixture
def root(monkeypatch, tmp_path):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    return tmp_path


def owner_of(solution):
    return CacheOwner.of(Build("cpu", format_json(DOUBLE), None if solution is None else format_json(solution)))


class TestCacheOwner:
    def test_is_named_by_content(self):
        one = make_solution("def run(x): pass")
        renamed = attrs.evolve(one, name="renamed", author="somebody")
        names = [owner_of(s).name for s in (one, renamed, make_solution("def run(x): return x"), None)]
        assert names[0] == names[1]
        assert len(set(names)) == 3
        assert names[0].startswith("solution-")
        assert names[3].startswith("reference-")

    @pytest.mark.parametrize("device", ["cpu", "cuda:0"])
    def test_the_first_request_to_a_worker_decides_its_cache(self, device):
        """On CUDA the device is opened before anything is built: without a name, nothing built would be kept."""
        build = Build(device, format_json(DOUBLE), format_json(make_solution("def run(x): pass")))
        asked = []

        class Recorder:
            def request(self, message, *_, **settings):
                asked.append(message)
                raise WorkerLost("recorded")

        server = SimpleNamespace(spawn=Recorder)
        context = SimpleNamespace(
            is_cuda=device != "cpu", begin_request=lambda: 1.0, device_work=nullcontext, no_device_work=nullcontext
        )
        with pytest.raises(WorkerLost):
            FunctionWorker(server, build, context).build()
        assert asked == [OpenDevice(build) if device == "cuda:0" else build]


class TestOwnCache:
    def test_is_made_once_and_kept(self, root):
        folder = own_cache(CacheOwner("one"), os.getuid())
        assert folder.parent == root / FOLDER
        (folder / "built").write_text("x")
        assert own_cache(CacheOwner("one"), os.getuid()) == folder
        assert (folder / "built").exists()
        assert [path.name for path in folder.parent.iterdir()] == [folder.name]

    def test_others_have_others(self, root):
        assert own_cache(CacheOwner("one"), os.getuid()) != own_cache(CacheOwner("two"), os.getuid())

    def test_one_that_belongs_to_somebody_else_is_not_used(self, root):
        if os.getuid() != 0:
            pytest.skip("only root can give a folder away")
        folder = own_cache(CacheOwner("one"), os.getuid())
        os.chown(folder, 60_999, 60_999)
        with pytest.raises(PermissionError, match="belongs to another user"):
            own_cache(CacheOwner("one"), os.getuid())

    def test_libraries_compiled_ahead_are_copied(self, root, monkeypatch):
        wanted, other = (make_solution(CPP + f"// {name}", name=name, language="cpp", dps=True) for name in "ab")
        registry = BuilderRegistry.get_instance()
        for outcome in registry.build_many([(DOUBLE, wanted), (DOUBLE, other)]):
            assert outcome.error is None
        folder = own_cache(owner_of(wanted), os.getuid())
        manifests = [json.loads(path.read_bytes()) for path in folder.rglob("manifest.json")]
        assert [manifest["facts"]["solution"] for manifest in manifests] == ["a"]
        monkeypatch.setenv("FIB_CACHE_PATH", str(folder))
        assert [outcome.state for outcome in registry.build_many([(DOUBLE, wanted)])] == ["cached"]


def test_where_the_cache_cannot_be_written_a_worker_builds_all_the_same(evaluate, cache_path):
    """The folder of the workers is a file here."""
    hidden = cache_path / f"{FOLDER}.away"
    (cache_path / FOLDER).mkdir(exist_ok=True)
    (cache_path / FOLDER).rename(hidden)
    try:
        (cache_path / FOLDER).write_text("in the way")
        (evaluation,) = evaluate(make_solution("def run(x):\n    return x * 2 + 0\n"))
    finally:
        (cache_path / FOLDER).unlink()
        hidden.rename(cache_path / FOLDER)
    assert evaluation.status == "PASSED", evaluation.log
    assert "builds of this run are not kept" in evaluation.log


class TestOtherUsers:
    @pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
    def test_cannot_list_or_write_the_folders(self, monkeypatch, tmp_path, umask):
        monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path / "new" / "cache"))
        before = os.umask(umask)
        try:
            folder = own_cache(CacheOwner("solution-x"), os.geteuid())
        finally:
            os.umask(before)
        assert not (tmp_path / "new").stat().st_mode & 0o022
        assert not folder.parent.stat().st_mode & 0o066
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
    def test_cannot_plant_the_folder_of_all_caches(self, root):
        (root / FOLDER).mkdir()
        os.chown(root / FOLDER, OTHER_UID, OTHER_UID)
        with pytest.raises(PermissionError, match=f"belongs to user {OTHER_UID}; delete it"):
            own_cache(CacheOwner("solution-x"), os.geteuid())
        with pytest.raises(PermissionError, match="belongs to user"):
            own_cache(CacheOwner("solution-x"), OTHER_UID + 1)
        assert list((root / FOLDER).iterdir()) == []

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
    def test_cannot_plant_the_timing_module(self, root):
        (root / "fib-bench-timing-v2").mkdir()
        os.chown(root / "fib-bench-timing-v2", OTHER_UID, OTHER_UID)
        with pytest.raises(PermissionError, match="belongs to user"):
            module_folder()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    def test_a_worker_with_another_user_reaches_its_cache(self, monkeypatch):
        with tempfile.TemporaryDirectory(prefix="fib-tests-") as root:
            Path(root).chmod(0o755)
            monkeypatch.setenv("FIB_CACHE_PATH", root)
            folder = own_cache(CacheOwner("solution-x"), OTHER_UID)
            for words, code in ((f"touch {folder}/x", 0), (f"ls {folder.parent}", 2), (f"touch {folder.parent}/x", 1)):
                done = subprocess.run(words.split(), user=OTHER_UID, group=OTHER_UID, capture_output=True, check=False)
                assert done.returncode == code, words
