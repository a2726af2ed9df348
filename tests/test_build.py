"""The build: decisions of setup.py, build information of the native module, and imports without it."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import runpy
import shutil
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.forked import forget, in_fork

import pyrobust
from pyrobust import _C, native_module
from pyrobust.native_module import source_hash
from pyrobust.ops import build_info

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def setup_names(monkeypatch):
    """Return the names that setup.py defines, without running its setup()."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    keep = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))]
    namespace = {"__file__": str(ROOT / "setup.py")}
    exec(compile(ast.Module(keep, []), "setup.py", "exec"), namespace)
    monkeypatch.delenv("PYROBUST_CUDA", raising=False)
    monkeypatch.delenv("CUDACXX", raising=False)
    return namespace


@pytest.fixture
def cuda_wanted(setup_names):
    """Return setup.py's decision function for CUDA."""
    return setup_names["cuda_wanted"]


def fake_nvcc(folder, release):
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.0'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(folder)


@pytest.mark.parametrize(
    ("torch_cuda", "nvcc", "choice", "expected"),
    [
        *(("13.0", "13.2", None, True), ("12.8", "13.0", None, False), (None, "13.0", None, False)),
        *(("13.0", None, None, False), ("13.0", None, "0", False), (None, None, "1", True)),
    ],
)
def test_cuda_is_built_for_a_torch_with_cuda_and_an_nvcc_of_its_major_version_or_as_the_environment_says(
    cuda_wanted, tmp_path, monkeypatch, torch_cuda, nvcc, choice, expected
):
    monkeypatch.setenv("PATH", fake_nvcc(tmp_path, nvcc) if nvcc else str(tmp_path))
    if choice:
        monkeypatch.setenv("PYROBUST_CUDA", choice)
    assert cuda_wanted(torch_cuda) is expected
    monkeypatch.setenv("PYROBUST_CUDA", "yes")
    with pytest.raises(SystemExit, match="expected 0 or 1, got 'yes'"):
        cuda_wanted(torch_cuda)


def fake_torch(folder, version):
    folder.mkdir()
    (folder / "version.py").write_text(f"__version__ = {version!r}\ncuda = '13.2'\n")
    return str(folder)


def test_the_torch_to_build_for_is_the_installed_one_or_that_of_the_environment(setup_names, tmp_path, monkeypatch):
    find = setup_names["torch_to_build_for"]
    monkeypatch.delenv("PYROBUST_TORCH_DIR", raising=False)
    assert find() == (Path(torch.__file__).parent, torch.__version__, torch.version.cuda)
    monkeypatch.setenv("PYROBUST_TORCH_DIR", fake_torch(tmp_path / "torch", "2.15.0+cu132"))
    assert find() == (tmp_path / "torch", "2.15.0+cu132", "13.2")
    monkeypatch.setenv("PYROBUST_TORCH_DIR", fake_torch(tmp_path / "old", "2.9.1"))
    with pytest.raises(SystemExit, match=r"expected 2\.11 or newer, got 2\.9\.1"):
        find()
    monkeypatch.setenv("PYROBUST_TORCH_DIR", str(tmp_path))
    with pytest.raises(SystemExit, match="PYROBUST_TORCH_DIR: expected the folder of the torch package"):
        find()
    monkeypatch.delenv("PYROBUST_TORCH_DIR")
    monkeypatch.setattr(setup_names["importlib"].util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"expected 2\.11 or newer, found none"):
        find()


def test_a_build_uses_the_ninja_of_its_own_environment(setup_names, tmp_path, monkeypatch):
    """Ignore the ninja recorded in an earlier build folder, which may be gone."""
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "ninja").write_text("#!/bin/sh\n")
    (scripts / "ninja").chmod(0o755)
    monkeypatch.setattr(setup_names["sysconfig"], "get_path", lambda name: str(scripts))
    calls = []
    monkeypatch.setattr(setup_names["subprocess"], "check_call", lambda command, env: calls.append(command))
    builder = SimpleNamespace(build_temp=tmp_path / "build", get_ext_fullpath=lambda name: tmp_path / "_C.so")
    setup_names["CMakeBuild"].build_extension(builder, SimpleNamespace(name="pyrobust._C"))
    configure, build = calls
    assert f"-DCMAKE_MAKE_PROGRAM={scripts / 'ninja'}" in configure
    assert build[:3] == ["cmake", "--build", str(tmp_path / "build")]


def test_build_info():
    info = build_info()
    assert info["simd"] in info["simd_levels"]
    assert info["simd_levels"][0] == "scalar"
    assert info["threads"] == torch.get_num_threads()
    assert (info["cuda"] is None) == (info["cuda_architectures"] is None)


def test_simd_levels_are_those_of_the_processor():
    flags = set(re.findall(r"\w+", next(iter(re.findall(r"^flags.*$", Path("/proc/cpuinfo").read_text(), re.M)), "")))
    expected = ["scalar"]
    if {"avx2", "fma", "f16c"} <= flags:
        expected.append("avx2")
        if {"avx512f", "avx512vl"} <= flags:
            expected.append("avx512")
    assert _C.simd_levels() == expected


def test_an_unknown_simd_level_is_refused_and_changes_nothing():
    before = _C.simd_level()
    with pytest.raises(ValueError, match=r"expected one of scalar.*got mmx"):
        _C.set_simd_level("mmx")
    assert _C.simd_level() == before


def test_the_stub_matches_the_module():
    stub = ast.parse((ROOT / "pyrobust" / "_C.pyi").read_text())
    named = {node.name: node for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assert set(named) == {name for name in dir(_C) if not name.startswith("_")}
    for name in ("BoundNetwork", "BoundNetwork32"):
        methods = {node.name for node in named[name].body}
        assert methods - {"__init__"} == {name for name in vars(getattr(_C, name)) if not name.startswith("_")}
    assert _C.BoundNetwork32.__bases__ == _C.BoundNetwork64.__bases__ == (_C.BoundNetwork,)
    assert set(vars(_C.BoundNetwork64)) == set(vars(_C.BoundNetwork32))


def import_error(folder, code):
    """The error of code that imports the package from a folder, in a process of its own."""
    # The finder of an editable install would import the real module.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    sys.path.insert(0, folder)
    forget("pyrobust")
    try:
        exec(code, {})
    except Exception as error:
        return traceback.format_exception_only(error)
    return []


def test_importing_without_the_native_module_is_one_clear_error(tmp_path):
    package = tmp_path / "pyrobust"
    shutil.copytree(Path(pyrobust.__file__).parent, package, ignore=shutil.ignore_patterns("_C*.so", "__pycache__"))
    (last,) = in_fork(import_error, str(tmp_path), "import pyrobust.ops")
    assert last.startswith("ImportError: pyrobust._C, the native module, could not be loaded")
    assert "pip install --no-build-isolation" in last


@pytest.fixture
def clone(tmp_path):
    """A source folder without a native module, and beside it an installed package whose module claims to fit."""
    root = tmp_path / "clone"
    ignored = shutil.ignore_patterns("_C*.so", "__pycache__")
    for name in ("pyrobust", "csrc"):
        source = Path(pyrobust.__file__).parent if name == "pyrobust" else ROOT / name
        shutil.copytree(source, root / name, ignore=ignored)
    for name in ("pyproject.toml", "CMakeLists.txt"):
        shutil.copy(ROOT / name, root / name)
    (tmp_path / "site" / "pyrobust").mkdir(parents=True)
    (tmp_path / "site" / "pyrobust" / "_C.py").write_text(
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('pyrobust._C', {_C.__file__!r})\n"
        "real = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(real)\n"
        "globals().update({name: value for name, value in vars(real).items() if not name.startswith('_')})\n"
        f"build_info = lambda: real.build_info() | {{'sources': {source_hash(root)!r}}}\n"
    )
    return root


def test_a_clone_uses_the_installed_native_module_of_its_sources(clone):
    # Python code may differ, as in an editable install.
    (clone / "pyrobust" / "errors.py").open("a").write("HERE = 1\n")
    code = "import pyrobust; print(pyrobust.__file__, pyrobust.errors.HERE, pyrobust._C.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(clone.parent / "site")}
    done = subprocess.run([sys.executable, "-c", code], cwd=clone, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    package, native = clone / "pyrobust" / "__init__.py", clone.parent / "site" / "pyrobust" / "_C.py"
    assert done.stdout.split() == [str(package), "1", str(native)]


@pytest.mark.parametrize("change", ["csrc/smoothing/philox.h", "csrc/new.h", "CMakeLists.txt", "version", "no hash"])
def test_a_native_module_of_other_sources_is_refused(clone, monkeypatch, change):
    """Load it in a clone that was pulled after the install, or that installs an older build."""
    installed = clone.parent / "site" / "pyrobust" / "_C.py"
    if change == "no hash":
        installed.write_text("build_info = dict")
    elif change == "version":
        project = (clone / "pyproject.toml").read_text()
        (clone / "pyproject.toml").write_text(project.replace('version = "', 'version = "9.'))
    else:
        (clone / change).open("a").write("// changed\n")
    with pytest.raises(ImportError, match=r"the source folder .*clone hides .*, was built from other sources: leave"):
        _load_in(clone, monkeypatch, [str(clone), str(installed.parent.parent)])
    assert sys.modules["pyrobust._C"] is _C


def test_a_clone_without_an_install_says_so(clone, monkeypatch):
    with pytest.raises(ImportError, match=r"the source folder .*clone has none, and none is installed"):
        _load_in(clone, monkeypatch, [str(clone), str(clone.parent)])
    shutil.rmtree(clone / "csrc")
    with pytest.raises(ImportError, match="pyrobust has none"):
        _load_in(clone, monkeypatch, [str(clone.parent / "site")])


def _load_in(clone, monkeypatch, paths):
    """Load the native module as the package of the clone would."""

    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(native_module, "import_module", missing)
    monkeypatch.setattr(native_module, "__file__", str(clone / "pyrobust" / "native_module.py"))
    monkeypatch.setattr(sys, "path", paths)
    native_module.load_native_module()


def test_the_cmake_list_names_every_source_file():
    listed = set(re.findall(r"csrc/\S+\.(?:cpp|cu)", (ROOT / "CMakeLists.txt").read_text()))
    sources = {str(path.relative_to(ROOT)) for pattern in ("*.cpp", "*.cu") for path in (ROOT / "csrc").rglob(pattern)}
    assert listed == sources


def test_kernels_know_no_torch_and_operators_no_launches():
    csrc = ROOT / "csrc"
    operators = {
        *csrc.rglob("*_op.cpp"),
        csrc / "bounds" / "engine" / "python_binding.h",
        *csrc.rglob("arguments.h"),
        csrc / "module.cpp",
    }
    operators |= {csrc / "common" / name for name in ("check.h", "cuda_stream.h", "dtypes.h", "threads.h")}
    for path in (path for path in csrc.rglob("*") if path.is_file()):
        text = path.read_text()
        if path in operators:
            assert "<<<" not in text, path
        else:
            assert not re.search(
                r'#include [<"](torch/|pybind11/|common/(check|cuda_stream|dtypes|threads)\.h)', text
            ), path
    assert all(path.exists() for path in operators)


def test_only_ops_get_the_cuda_definition(tmp_path):
    """Check the compile commands: only ops and build facts get the definition, and no other source tests for it."""
    if shutil.which(os.environ.get("CUDACXX", "nvcc")) is None:
        pytest.skip("no nvcc on this machine")
    configured = _configure(ROOT, tmp_path, "-DPYROBUST_CUDA=ON")
    assert configured.returncode == 0, configured.stderr
    commands = json.loads((tmp_path / "compile_commands.json").read_text())
    defined = {command["file"] for command in commands if "-DPYROBUST_WITH_CUDA" in command["command"]}
    # CMake makes one file, which includes them all, of what is compiled together.
    together = [file for file in defined if file.endswith(".cxx")]
    defined |= {name for file in together for name in re.findall(r'#include "(.*)"', Path(file).read_text())}
    defined = {Path(file).relative_to(ROOT).as_posix() for file in defined if file.endswith(".cpp")}
    sources = [path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.cpp")]
    assert defined == {
        path.as_posix() for path in sources if path.name.endswith("_op.cpp") or path.name == "build_facts.cpp"
    }
    assert {path.as_posix() for path in sources if "PYROBUST_WITH_CUDA" in (ROOT / path).read_text()} <= defined


def test_a_source_that_would_miss_the_cuda_definition_stops_the_build(tmp_path):
    shutil.copytree(ROOT / "csrc", tmp_path / "csrc")
    listing = (ROOT / "CMakeLists.txt").read_text()
    (tmp_path / "csrc/attacks/steps_op.cpp").rename(tmp_path / "csrc/attacks/steps.cpp")
    (tmp_path / "CMakeLists.txt").write_text(listing.replace("csrc/attacks/steps_op.cpp", "csrc/attacks/steps.cpp"))
    stopped = _configure(tmp_path, tmp_path / "build")
    assert stopped.returncode != 0
    assert "csrc/attacks/steps.cpp: uses CUDA kernels" in " ".join(stopped.stderr.split())
    # Without any op file, for example after a change of suffix, no source would get the definition.
    (tmp_path / "CMakeLists.txt").write_text(listing.replace("(_op|/build_facts)", "(_ops|/facts)"))
    stopped = _configure(tmp_path, tmp_path / "build")
    assert stopped.returncode != 0
    assert "SOURCES: expected files named *_op.cpp and build_facts.cpp, got none" in " ".join(stopped.stderr.split())


def _configure(source: Path, build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    pybind11 = pytest.importorskip("pybind11")
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake on this machine")
    return subprocess.run(
        [
            *(cmake, "-S", str(source), "-B", str(build), "-G", "Ninja"),
            *(f"-DPYROBUST_TORCH_DIR={Path(torch.__file__).parent}", f"-DPYROBUST_TORCH_VERSION={torch.__version__}"),
            *(f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"),
            *("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options),
        ],
        capture_output=True,
        text=True,
    )


def test_the_hooks_run_the_tools_of_the_check_in_the_versions_of_the_test_extra():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    tools = set(re.findall(r"^ +entry: (\S+)", hooks, re.M))
    lint = re.search(r"^lint\(\) \{$(.*?)^\}$", (ROOT / ".ci/run").read_text(), re.M | re.S)
    assert lint is not None
    assert tools == set(re.findall(r"\b(ruff|clang-format|mypy|lint-imports)\b", lint[1]))
    # A repository of hooks would name a second version of its tool.
    assert re.findall(r"repo: (\S+)", hooks) == ["local"]
    pinned = re.findall(r'"([\w-]+)==', (ROOT / "pyproject.toml").read_text())
    assert tools - {"lint-imports"} <= set(pinned)


def test_the_pythons_of_the_classifiers_are_tested_and_get_wheels():
    project = (ROOT / "pyproject.toml").read_text()
    listed = set(re.findall(r"Python :: (3\.\d+)", project))
    assert f'requires-python = ">={min(listed, key=lambda version: int(version[2:]))}"' in project
    wheels = re.search(r"\[tool\.cibuildwheel\]\nbuild = \"(.*)\"", project)[1]
    assert wheels.split() == [f"cp{version.replace('.', '')}-*" for version in sorted(listed)]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    matrix = re.search(r"python: \[(.*)\]", workflow)[1]
    assert set(re.findall(r"3\.\d+", matrix)) | set(re.findall(r"python-version: \"(.*)\"", workflow)) == listed


def test_actions_are_pinned_by_major_version():
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        used = re.findall(r"uses: (\S+)", workflow.read_text())
        assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used), workflow


def test_wheels_passes_over_shims_that_start_nothing(tmp_path, monkeypatch):
    if sys.version_info < (3, 11):
        pytest.skip("the script needs tomllib")
    find_python = runpy.run_path(str(ROOT / ".ci" / "wheels.py"))["find_python"]
    real = tmp_path / "versions" / "3.99.1" / "bin" / "python"
    for path, code in ((tmp_path / "python3.99", "exit 127"), (real, "exit 0")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{code}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert find_python("3.99") == str(real)
    assert find_python("3.98") is None


def test_the_version_is_defined_once():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{pyrobust.__version__}"' in text
    assert importlib.util.find_spec("pyrobust") is not None
