"""Start the `tritonserver` of `make triton`: `python scripts/start_tritonserver.py --model-repository=models`.

All options are passed to the server. The package nvidia-pytriton contains a server, but does not set it up: this script
sets the path of its libraries, and makes a folder `backends` in the environment with the Python backend and the stub
for this Python. $SPECEXPORT_TRITON_PYTHON names the Python of another environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ASKED = """
import json, sys, sysconfig
import onnxruntime, pytriton, tokenizers
folders = {"packages": sysconfig.get_path("platlib"), "library": sysconfig.get_config_var("LIBDIR")}
print(json.dumps({**folders, "prefix": sys.prefix, "version": f"{sys.version_info.major}.{sys.version_info.minor}"}))
"""


@cache
def environment() -> dict[str, str] | str:
    """Where the packages are, or why they were not found."""
    python = Path(os.environ.get("SPECEXPORT_TRITON_PYTHON") or ROOT / ".venv/triton/bin/python")
    if not python.exists():
        return "needs nvidia-pytriton in an environment of its own: make triton"
    done = subprocess.run([python, "-c", ASKED], capture_output=True, text=True, check=False, encoding="utf-8")
    return json.loads(done.stdout) if done.returncode == 0 else f"{python}: {done.stderr.splitlines()[-1]}"


def backends(found: dict[str, str]) -> Path:
    """The folder of backends, with links to the Python backend and its stub."""
    server, folder = Path(found["packages"]) / "pytriton/tritonserver", Path(found["prefix"]) / "backends"
    stub = server / "python_backend_stubs" / found["version"] / "triton_python_backend_stub"
    (folder / "python").mkdir(parents=True, exist_ok=True)
    for file in [*(server / "backends/python").glob("*.*"), stub]:
        link = folder / "python" / file.name
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    return folder


def main(options: list[str]) -> None:
    found = environment()
    if isinstance(found, str):
        raise SystemExit(found)
    packages = Path(found["packages"])
    server = str(packages / "pytriton/tritonserver/bin/tritonserver")
    libraries = f"{packages / 'nvidia_pytriton.libs'}:{found['library']}"
    # Completing configurations would start the interpreter once more for each model.
    given = [f"--backend-directory={backends(found)}", "--disable-auto-complete-config", *options]
    sys.stdout.flush()
    os.execve(server, [server, *given], os.environ | {"LD_LIBRARY_PATH": libraries})


if __name__ == "__main__":
    main(sys.argv[1:])
