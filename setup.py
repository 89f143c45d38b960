import gzip
import os
import re
import shutil
import tarfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

os.umask(0o022)  # the modes of files in the archives are not those of who builds them

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
            for folder in features.glob("*/web"):
                compress(folder)
            copy_documentation(Path(__file__).with_name("docs"), features / "docs_page" / "docs")


class SameBytes(sdist):
    """With SOURCE_DATE_EPOCH the source archive depends on the files alone, as a wheel does."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):  # noqa: A002 - its name
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if format != "gztar" or epoch is None:
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)

        def same(member):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = int(epoch)
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        name = f"{base_name}.tar.gz"
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            archive.add(base_dir, filter=same)
        return name


def description():
    """The README with links that lead somewhere outside of the source, too: absolute ones, or their texts alone.

    Its pictures are those of the release, or none.
    """
    text = Path(__file__).with_name("README.md").read_text("utf-8")
    text = PICTURE.sub(rf"\1({SOURCE_URL}/\2?raw=true)" if SOURCE_URL else "", text)
    return LINK.sub(rf"[\1]({SOURCE_URL}/\2)" if SOURCE_URL else r"\1", text)


setup(
    cmdclass={"build_py": BuildFromScratch, "sdist": SameBytes},
    long_description=description(),
    long_description_content_type="text/markdown",
    project_urls={"Source": SOURCE_URL} if SOURCE_URL else {},
)
