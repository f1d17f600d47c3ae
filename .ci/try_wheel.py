"""Build the source archive and the wheel, install the wheel elsewhere, and run a short demo.

    python .ci/try_wheel.py

Nothing is downloaded: the new environment sees the packages of this one, but not this clone. The
demo trains for two epochs, to see that it runs and not what it reaches.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
# Of the new environment: neither the clone nor a user's own packages.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def run(*command: str | Path, folder: Path) -> str:
    """What a command prints; its errors are shown, and end everything."""
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Build, install, run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=ROOT)
        (wheel,) = folder.glob(f"bayesieve-{VERSION}-py3-none-any.whl")
        files = zipfile.ZipFile(wheel).namelist()
        assert "bayesieve/py.typed" in files
        assert all(
            file.startswith(("bayesieve/", f"bayesieve-{VERSION}.dist-info/")) for file in files
        )
        venv.create(folder / "venv", symlinks=True)
        scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        python = scripts / "python"
        install = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet")
        run(sys.executable, *install, wheel, folder=folder)
        home = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                        folder=folder).strip())  # fmt: skip
        packages = [path for path in sys.path if Path(path).name.endswith("-packages")]
        (home / "others.pth").write_text("\n".join(packages), encoding="utf-8")
        where = run(python, "-c", "import bayesieve; print(bayesieve.__file__)", folder=folder)
        assert Path(where.strip()).is_relative_to(home), where
        assert run(scripts / "bayesieve", "--version", folder=folder).strip() == VERSION
        run(scripts / "bayesieve", "demo", "--epochs", "2", "--out", "demo", folder=folder)
        assert (folder / "demo" / "report.html").is_file()
        size = wheel.stat().st_size / 1e3
        print(f"{wheel.name}: {len(files)} files, {size:,.0f} kB, installs and runs the demo")


if __name__ == "__main__":
    main()
