import gzip
import os
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE_URL = os.environ.get("LEAN_OVMS_SOURCE_URL", "").rstrip("/")
"""Where the files of this version can be read, for a release: https://HOST/OWNER/lean_ovms/blob/TAG."""
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
PICTURE = re.compile(r"(!\[[^\]]*\])\((?!https?://)([^)\s]+)\)\n?")


def compress(folder):
    """A compressed copy beside each file of the page; features/web_page/api.py sends it."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".gz":
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))


def copy_documentation(source, target):
    """The pages of docs/, which features/docs_page/guide.py serves; those of the features are in their folders."""
    for path in sorted(source.rglob("*.md")):
        copied = target / path.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(path.read_bytes())


class BuildFromScratch(build_py):
    """A module of an earlier build must not get into a wheel."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            features = Path(self.build_lib, "lean_ovms", "features")
            compress(features / "web_page" / "web")
            copy_documentation(Path(__file__).with_name("docs"), features / "docs_page" / "docs")


def description():
    """The README with links that lead somewhere outside of the source, too: absolute ones, or their texts alone.

    Its pictures are those of the release, or none.
    """
    text = Path(__file__).with_name("README.md").read_text("utf-8")
    text = PICTURE.sub(rf"\1({SOURCE_URL}/\2?raw=true)" if SOURCE_URL else "", text)
    return LINK.sub(rf"[\1]({SOURCE_URL}/\2)" if SOURCE_URL else r"\1", text)


setup(
    cmdclass={"build_py": BuildFromScratch},
    long_description=description(),
    long_description_content_type="text/markdown",
    project_urls={"Source": SOURCE_URL} if SOURCE_URL else {},
)
