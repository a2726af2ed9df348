"""Builds pyrobust._C with CMake. What to compile stands in CMakeLists.txt, everything else in pyproject.toml."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def cuda_wanted(torch_cuda: str | None) -> bool:
    """PYROBUST_CUDA=0|1 decides; else CUDA is built for a torch that has it, with an nvcc of its major version."""
    choice = os.environ.get("PYROBUST_CUDA", "")
    if choice in ("0", "1"):
        return choice == "1"
    if choice:
        raise SystemExit(f"PYROBUST_CUDA: expected 0 or 1, got {choice!r}; unset it to let the installed torch decide")
    nvcc = shutil.which(os.environ.get("CUDACXX", "nvcc"))
    if torch_cuda is None or nvcc is None:
        return False
    release = re.search(r"release (\d+)", subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout)
    return release is not None and release.group(1) == torch_cuda.split(".")[0]


def torch_to_build_for() -> tuple[Path, str, str | None]:
    """Return the folder, version and CUDA version of PYROBUST_TORCH_DIR, or else of the installed torch.

    Torch is not imported: the headers and libraries linked here are the same for every Python, so that of one serves
    to build wheels for all.
    """
    named = os.environ.get("PYROBUST_TORCH_DIR")
    if named:
        folder = Path(named).resolve()
    else:
        installed = importlib.util.find_spec("torch")
        if installed is None or installed.origin is None:
            raise SystemExit("torch: expected 2.11 or newer, found none; install it, then build again")
        folder = Path(installed.origin).parent
    if not (folder / "version.py").is_file():
        raise SystemExit(f"PYROBUST_TORCH_DIR: expected the folder of the torch package, got {named!r}")
    version = runpy.run_path(str(folder / "version.py"))
    if tuple(int(part) for part in version["__version__"].split(".")[:2]) < (2, 11):
        raise SystemExit(
            f"torch: expected 2.11 or newer, got {version['__version__']}; upgrade torch, then build again"
        )
    return folder, version["__version__"], version["cuda"]


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        import pybind11

        torch_folder, torch_version, torch_cuda = torch_to_build_for()
        source = Path(__file__).resolve().parent
        source_hash = runpy.run_path(str(source / "pyrobust" / "native_module.py"))["source_hash"]
        target = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        cuda = cuda_wanted(torch_cuda)
        # cmake and ninja stand beside the Python that builds, also where its environment is not activated.
        scripts = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
        environment = {**os.environ, "PATH": scripts}
        # By name: the one that an earlier environment built with here may be gone.
        ninja = shutil.which("ninja", path=scripts)
        build = Path(self.build_temp).resolve()
        subprocess.check_call(
            [
                "cmake", "-S", str(source), "-B", str(build), "-G", "Ninja",
                f"-DPYROBUST_TORCH_DIR={torch_folder}",
                f"-DPYROBUST_TORCH_VERSION={torch_version}",
                f"-DPYROBUST_SOURCES={source_hash(source)}",
                f"-DPYROBUST_CUDA={'ON' if cuda else 'OFF'}",
                f"-DPYROBUST_SANITIZE={'ON' if os.environ.get('PYROBUST_SANITIZE') == '1' else 'OFF'}",
                *([f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []),
                "-U", "*Python_*",  # of the Python that this folder was used for before
                f"-DPython_EXECUTABLE={sys.executable}",
                f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
                f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target}",
            ],
            env=environment,
        )  # fmt: skip
        # As many as there are processors: ninja's own two more would make each slower, and the whole by a tenth.
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(len(os.sched_getaffinity(0)))
        subprocess.check_call(["cmake", "--build", str(build), "--parallel", jobs], env=environment)


setup(ext_modules=[Extension("pyrobust._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
