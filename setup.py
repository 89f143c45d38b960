import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildFromScratch(build_py):
    """Endpoints are found by walking the package, so a module of an earlier build must not get into a wheel."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": BuildFromScratch})
