"""Work on a Ray cluster gives the bytes that processes here give, also when a worker is killed."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lemur_core.files.errors import UserError
from lemur_core.files.workers import on_cluster
from tests.builders import synthesis

ROOT = Path(__file__).parents[3]
HAS_RAY = importlib.util.find_spec("ray") is not None

#: Curates a table and extracts a package, in `out`; `ray` is an address or None.
WORK = """
from curate import curate
from extract import extract
curate(f"{source}/rows.jsonl", out=f"{out}/snapshot", ray=ray)
extract(f"{source}/package", out=f"{out}/blocks", ray=ray)
"""
#: Does so on a cluster of so many nodes of one core each; kills a worker that computes, if told to.
SCRIPT = """
import json, os, signal, sys, threading, time
import psutil
from ray.cluster_utils import Cluster
source, out, nodes, kill, work = sys.argv[1:]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
for _ in range(int(nodes) - 1):
    cluster.add_node(num_cpus=1)
killed = []

def kill_one():
    while not killed:
        for process in psutil.process_iter(["cmdline", "status"]):
            if (process.info["cmdline"] or [""])[0].startswith("ray::_work_on_cluster"):
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
                return
        time.sleep(0.01)

if kill == "kill":
    threading.Thread(target=kill_one, daemon=True).start()
exec(work, {"source": source, "out": out, "ray": cluster.address})
print(json.dumps({"killed": len(killed), "statistics": os.environ["RAY_USAGE_STATS_ENABLED"]}))
cluster.shutdown()
"""


@pytest.mark.skipif(HAS_RAY, reason="Ray is installed")
def test_without_ray_it_is_said_what_to_install() -> None:
    with pytest.raises(UserError, match=r"pip install 'lemur-curator\[ray\]'"), on_cluster("auto"):
        pass


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed: pip install 'lemur-curator[ray]'")
def test_equal_bytes_on_one_node_and_two_and_when_a_worker_is_killed(tmp_path: Path) -> None:
    row = {"task": "img-classification", "dataset": "cifar-10", "metric": "acc", "epoch": 1, "prm": "{}"}
    codes = map(synthesis.varied_network, (0, 600, 1093, 2186))
    rows = [{"nn": f"n-{place}", "nn_code": code, **row} for place, code in enumerate(codes)]
    rows += [{"nn": "broken", "nn_code": "def f(:"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (package := tmp_path / "package").mkdir()
    (package / "gate.py").write_text(synthesis.HEAD + synthesis.TEXTS["GATE"])

    def run(nodes: int, kill: str) -> dict[str, bytes]:
        """Curate with an empty cache, so that everything is computed on the cluster; 0 nodes: in processes here."""
        out, cache = tmp_path / f"out-{nodes}-{kill}", tmp_path / f"cache-{nodes}-{kill}"
        script = SCRIPT if nodes else f"import sys; source, out = sys.argv[1:3]; ray = None{WORK}"
        command = [sys.executable, "-P", "-c", script, str(tmp_path), str(out), str(nodes), kill, WORK]
        paths = os.pathsep.join([str(ROOT), *sys.path])
        environment = os.environ | {"LEMUR_CURATOR_CACHE": str(cache), "PYTHONPATH": paths}
        done = subprocess.run(command, env=environment, capture_output=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        if nodes:
            assert json.loads(done.stdout.splitlines()[-1]) == {"killed": int(kill == "kill"), "statistics": "0"}
        paths_out = [path for path in out.rglob("*") if path.suffix in (".parquet", ".md", ".py", ".jsonl")]
        return {str(path.relative_to(out)): path.read_bytes() for path in paths_out}

    expected = run(0, "")
    assert {"snapshot/graphs.parquet", "blocks/blocks/package/gate.SqueezeGate.py"} <= expected.keys()
    assert run(1, "") == run(2, "") == run(2, "kill") == expected
