"""Make the environments of the peers, each with its pinned requirements; those that exist are kept.

    python benchmarks/peers/setup.py openvino genai llamacpp [--jobs N]

They are in SPECEXPORT_PEERS, by default specexport-peers in the user's cache. llamacpp is compiled for this processor
from the sources that llama-cpp-python bundles, which needs cmake and a C++ compiler. transformers runs in the project's
own .venv.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from pathlib import Path

from locations import SOURCE, environment, llamacpp

HERE = Path(__file__).parent
RECIPE = 2  # of an environment, beside its requirements
NAMES = ("openvino", "genai", "llamacpp")
LIBRARIES = ("src/libllama.a", "ggml/src/libggml.a", "ggml/src/libggml-cpu.a", "ggml/src/libggml-base.a")


def run(*command: str | Path) -> None:
    print(" ".join(str(part) for part in command), file=sys.stderr, flush=True)
    subprocess.run(command, check=True)


def make_environment(name: str) -> None:
    """A virtual environment with the listed versions."""
    folder, requirements = environment(name), HERE / f"requirements/{name}.txt"
    ready, made_of = folder / "ready", f"{RECIPE}\n{requirements.read_text(encoding='utf-8')}"
    if ready.exists() and ready.read_text(encoding="utf-8") == made_of:
        return
    run(sys.executable, "-m", "venv", "--clear", folder)
    install = (folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check")
    # The lists are complete: resolving again would add what they leave out, such as a torchvision for another torch.
    # But what torch needs beside it depends on the build that the package index gives.
    run(*install, "--no-deps", "--requirement", requirements)
    run(*install, "--constraint", requirements, "torch")
    ready.write_text(made_of, encoding="utf-8")


def build_llamacpp(jobs: int) -> None:
    parts = llamacpp()
    folder = parts.program.parent
    folder.mkdir(parents=True, exist_ok=True)
    if not parts.source.exists():
        pip = environment("llamacpp") / "bin/pip"
        run(
            pip,
            "download",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-binary",
            "llama-cpp-python",
            "--dest",
            folder,
            SOURCE,
        )
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        next(folder.glob("llama_cpp_python-*/")).rename(folder / "source")
    options = (
        "CMAKE_BUILD_TYPE=Release",
        "BUILD_SHARED_LIBS=OFF",
        "GGML_NATIVE=ON",
        "GGML_OPENMP=ON",
        "LLAMA_CURL=OFF",
        "LLAMA_OPENSSL=OFF",
    )
    parted = [f"-DLLAMA_BUILD_{part}=OFF" for part in ("TESTS", "SERVER", "UI", "APP", "TOOLS", "EXAMPLES")]
    run("cmake", "-S", parts.source, "-B", parts.build, *(f"-D{option}" for option in options), *parted)
    run("cmake", "--build", parts.build, "--target", "llama", "--parallel", str(jobs))
    includes = [f"-I{parts.source / part}" for part in ("include", "ggml/include", "vendor", "common")]
    # llama.cpp's own prompt lookup, and what that needs.
    common = [parts.source / "common" / name for name in ("ngram-map.cpp", "log.cpp", "json.cpp")]
    libraries = [parts.build / library for library in LIBRARIES]
    run(
        "c++",
        "-std=c++17",
        "-O2",
        *includes,
        HERE / "llamacpp.cpp",
        *common,
        *libraries,
        "-fopenmp",
        "-lpthread",
        "-ldl",
        "-o",
        parts.program,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=NAMES)
    parser.add_argument("--jobs", type=int, default=1, help="parallel compiler processes")
    arguments = parser.parse_args()
    for name in arguments.names:
        try:
            make_environment(name)
            if name == "llamacpp":
                build_llamacpp(arguments.jobs)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{name}: {Path(error.cmd[0]).name} failed with exit code {error.returncode}; its output is above")


if __name__ == "__main__":
    main()
