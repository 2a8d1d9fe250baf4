"""Curation and extraction in tasks on real engines: the same bytes as in one process, also after a task was killed.

    python -m benchmarks.cluster local
    python -m benchmarks.cluster ray     # starts a cluster of a head and two workers of one core each
    python -m benchmarks.cluster slurm   # starts a Slurm of one node; as root, with Debian's slurmctld, slurmd, munge

Every 20th network of LEMUR 2.1.0 is curated, each time from its text on: in one process, in tasks, and in tasks of
which one is killed (-9); then the same command goes on. Two packages are extracted, up to `executed`, in both ways. The
engines end with the benchmark. Ray listens, unguarded, on the machine's own address meanwhile: not where others could
reach it.
"""

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from curate.sources import open_source

_BIN = Path(sys.executable).parent
_EVERY = 20
_TASKS = 3
_SOURCES = ("--source", "segmentation-models-pytorch@0.6.0", "--source", "vit-pytorch@1.26.11")

_SLURM = """
ClusterName=one
SlurmctldHost=localhost
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
MailProg=/bin/true
NodeName=localhost NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

_RAY_NODES = """
import ray, sys
ray.init(address="auto", logging_level="ERROR", log_to_driver=False)
sys.exit(sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]))
"""


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """A Slurm of one node of two cores, on other than the usual ports."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    config = folder / "slurm.conf"
    config.write_text(_SLURM.format(folder=folder))
    os.environ["SLURM_CONF"] = str(config)
    names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{option}={folder}/munge.{name}" for option, name in names.items()]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_service(["munged", "--foreground", "--force", *munge], folder))
        _wait_for(["munge", f"--socket={folder}/munge.socket", "--no-input"])
        stack.enter_context(_service(["slurmctld", "-D", "-c"], folder))
        stack.enter_context(_service(["slurmd", "-D", "-c", "-N", "localhost"], folder))
        _wait_for(["sh", "-c", "sinfo --noheader --states=idle | grep -q idle"])
        yield


@contextlib.contextmanager
def ray(folder: Path) -> Iterator[None]:
    """A head without a core of its own, and two workers of one core each.

    One after the other: nodes of one machine that start side by side take the same socket, and one of them dies.
    """
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "127.0.0.1:6399"}
    start = [
        str(_BIN / "ray"),
        "start",
        "--block",
        "--object-store-memory",
        "100000000",
        "--node-ip-address",
        "127.0.0.1",
    ]
    with contextlib.ExitStack() as stack:
        head = ["--head", "--port", "6399", "--num-cpus", "0", "--include-dashboard", "false"]
        stack.enter_context(_service([*start, *head, "--temp-dir", str(folder / "ray")], folder))
        _wait_for([sys.executable, "-c", _RAY_NODES, "1"])
        for nodes in (2, 3):
            stack.enter_context(_service([*start, "--address", os.environ["RAY_ADDRESS"], "--num-cpus", "1"], folder))
            _wait_for([sys.executable, "-c", _RAY_NODES, str(nodes)])
        yield


@contextlib.contextmanager
def _service(command: list[str], folder: Path) -> Iterator[None]:
    """A process that ends with the block, and what it has started."""
    with (folder / f"{Path(command[0]).name}.out").open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder)
    try:
        yield
    finally:
        started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        for one in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def _wait_for(command: list[str]) -> None:
    for _ in range(120):
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.5)
    raise SystemExit(f"{command[0]}: did not start within 60 s")


def tables(folder: Path, *timed: str) -> dict[str, bytes]:
    """Every file of a snapshot but its manifest, which tells seconds, and others that do."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("manifest.json", *timed))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def curate(folder: Path, name: str, *further: str) -> "subprocess.Popen[str]":
    """Start `lemur curate` on the sample."""
    return _lemur(folder, name, "curate", "sample.parquet", "--graph", "off", *further)


def extract(folder: Path, engine: str) -> tuple[int, bool, float]:
    """Extract in one process and in tasks. Returns: the number of files, whether all are the same, seconds in tasks."""
    words = ("extract", *_SOURCES, "--level", "executed")
    _lemur(folder, "blocks", *words, "--jobs", "1").communicate()
    started = time.monotonic()
    _lemur(folder, "blocks in tasks", *words, "--executor", engine, "--tasks", "2", "--workers", "2").communicate()
    while engine == "slurm" and subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout:
        time.sleep(0.5)
    seconds = time.monotonic() - started
    one, tasks = (tables(folder / name, "report.md") for name in ("blocks", "blocks in tasks"))
    return len(one), one == tasks, seconds


def _lemur(folder: Path, name: str, *words: str) -> "subprocess.Popen[str]":
    """Start a command that writes to this folder, with a cache of its own."""
    command = [str(_BIN / "lemur"), *words, "--out", name]
    environment = {**os.environ, "LEMUR_CURATOR_CACHE": str(folder / f"cache of {name}")}
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def in_tasks(folder: Path, engine: str, name: str, *, kill: str = "") -> tuple[int, str, float]:
    """Run in tasks; with `kill`, one task is killed while that step runs.

    Returns: the exit code (of Slurm: 0 if the snapshot is there), the line that was told, seconds from start or kill.
    """
    started = time.monotonic()
    process = curate(folder, name, "--executor", engine, "--tasks", str(_TASKS), "--workers", "2")
    if kill:
        while not (tasks := _tasks(folder / f"{name}.work", kill)):
            time.sleep(0.02)
        random.choice(tasks).kill()
        started = time.monotonic()
    told = process.communicate()[0].strip().splitlines()
    code = process.returncode
    if engine == "slurm" and code == 0:
        while subprocess.run(["squeue", "--noheader"], capture_output=True, check=True).stdout:
            time.sleep(0.5)
        code = 0 if (folder / name).exists() else 1
    line = next((line for line in reversed(told) if "killed" in line or "queued" in line), told[-1])
    return code, line.replace(str(folder), "."), time.monotonic() - started


def _tasks(work: Path, step: str) -> list[psutil.Process]:
    """The processes that run tasks of a step; Ray names them, others hold the task's log open."""
    logs = work / "steps" / step / "logs"
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            named = " ".join(process.cmdline())
            if named.startswith("ray::_run_rank") and logs.parent.exists():
                found.append(process)
            elif "spawn_main" in named or "launch_pickled" in named:
                found += [process for file in process.open_files() if Path(file.path).parent == logs]
    return found


def main() -> None:
    """Start the engine, run, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=["local", "ray", "slurm"])
    engine: str = parser.parse_args().engine
    started = {"ray": ray, "slurm": slurm}
    missing = [
        name for name in ("munged", "slurmctld", "slurmd", "sbatch") if engine == "slurm" and not shutil.which(name)
    ]
    if missing:
        raise SystemExit(f"{', '.join(missing)}: not found; apt-get install slurmctld slurmd slurm-client munge")
    with tempfile.TemporaryDirectory() as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        rows = pa.Table.from_batches(open_source("lemur").batches()).drop_columns(["problem"])
        names = sorted(set(rows["nn"].to_pylist()))[::_EVERY]
        sample = rows.filter(pc.is_in(rows["nn"], pa.array(names)))
        pq.write_table(sample, folder / "sample.parquet", compression="zstd")
        print(f"{sample.num_rows:,} rows of {len(names):,} networks")
        begun = time.monotonic()
        curate(folder, "one", "--jobs", "1").communicate()
        print(f"one process: {time.monotonic() - begun:.0f} s")
        expected = tables(folder / "one")
        if engine in started:
            stack.enter_context(started[engine](folder))
        code, line, seconds = in_tasks(folder, engine, "tasks")
        same = tables(folder / "tasks") == expected
        print(f"{engine}, {_TASKS} tasks: exit {code}, {seconds:.0f} s, same bytes: {same}")
        print(f"  {line}")
        code, line, seconds = in_tasks(folder, engine, "killed", kill="features")
        print(f"a task of step features killed: exit {code} after {seconds:.0f} s")
        print(f"  {line}")
        code, line, seconds = in_tasks(folder, engine, "killed")
        print(f"again: exit {code}, {seconds:.0f} s, same bytes: {tables(folder / 'killed') == expected}")
        files, same, seconds = extract(folder, engine)
        print(f"extraction, 2 tasks: {files:,} files, {seconds:.0f} s, same bytes: {same}")


if __name__ == "__main__":
    main()
