import gzip
import pathlib
import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


def compress(folder):
    """A compressed copy beside each file of the page; api/admin/page.py sends it."""
    for path in sorted(folder.iterdir()):
        if path.suffix != ".gz":
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


class BuildFromScratch(build_py):
    """Endpoints are found by walking the package, so a module of an earlier build must not get into a wheel."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            compress(pathlib.Path(self.build_lib, "lean_ovms", "web"))


setup(cmdclass={"build_py": BuildFromScratch})
