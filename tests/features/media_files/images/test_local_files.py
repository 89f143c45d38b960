"""Files in one folder can be read, and no others."""

import os

import pytest

from lean_ovms.errors import BadRequest
from lean_ovms.features.media_files.images.local_files import LocalFiles

SECRET = b"secret"


@pytest.fixture
def root(tmp_path):
    """Returns a folder with an image, and with many things that lead out of it."""
    (tmp_path / "secret.png").write_bytes(SECRET)
    root = tmp_path / "images"
    (root / "sub").mkdir(parents=True)
    (root / "zebra.png").write_bytes(b"zebra")
    (root / "sub" / "lion.png").write_bytes(b"lion")
    (root / "inside.png").symlink_to(root / "sub" / "lion.png")
    (root / "outside.png").symlink_to(tmp_path / "secret.png")
    (root / "out").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    (tmp_path / "images-too").mkdir()
    (tmp_path / "images-too" / "a.png").write_bytes(SECRET)
    return root


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("{}/zebra.png", b"zebra"),
        ("{}/sub/lion.png", b"lion"),
        ("{}//sub/./lion.png", b"lion"),
        ("{}/inside.png", b"lion"),
        ("zebra.png", b"zebra"),
        ("sub/lion.png", b"lion"),
    ],
)
async def test_files_below_the_folder_are_read(root, path, data):
    assert await LocalFiles(str(root), 100).read(path.format(root)) == data


OUT = [
    "{}/outside.png",
    "{}/out/secret.png",
    "{}/../secret.png",
    "{}/sub/../../secret.png",
    "../secret.png",
    "{}-too/a.png",
    "/etc/passwd",
    "/proc/self/environ",
    "{}/pipe",
    "{}/sub",
    "{}",
    "",
    "/",
    "{}/loop",
    "{}/missing.png",
    "{}/zebra.png\0.jpg",
    "{}/..\\secret.png",
    "{}/" + "x" * 5000,
    "/dev/zero",
    "\udcff.png",
]


@pytest.mark.parametrize("path", OUT)
async def test_everything_else_is_refused_without_a_word_about_it(root, path):
    with pytest.raises(BadRequest) as caught:
        await LocalFiles(str(root), 100).read(path.format(root))
    assert str(root.parent) not in caught.value.message


async def test_a_file_larger_than_the_limit_or_without_a_folder_is_refused(root):
    assert await LocalFiles(str(root), 5).read("zebra.png") == b"zebra"
    with pytest.raises(BadRequest, match="limit of 4 bytes"):
        await LocalFiles(str(root), 4).read("zebra.png")
    with pytest.raises(BadRequest, match="disabled"):
        await LocalFiles("", 100).read(str(root / "zebra.png"))
    said = set()
    for name in ("secret.png", "nothing-there.png"):  # outside, both look the same
        with pytest.raises(BadRequest) as caught:
            await LocalFiles(str(root), 100).read(str(root.parent / name))
        said.add(caught.value.message)
    assert len(said) == 1


async def test_the_folder_itself_may_be_a_link(root, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(root)
    shelf = LocalFiles(str(link), 100)
    assert await shelf.read(str(link / "zebra.png")) == b"zebra"
    assert await shelf.read(str(root / "zebra.png")) == b"zebra"


async def test_a_folder_that_becomes_a_link_after_the_check_is_not_followed(root, monkeypatch):
    """The folder is replaced by a link between resolving and opening."""
    resolved = os.path.realpath

    def and_then_swap(path):
        found = resolved(path)
        if (root / "sub").is_dir() and not (root / "sub").is_symlink():
            (root / "sub").rename(root / "gone")
            (root / "sub").symlink_to(root.parent)
        return found

    (root / "sub" / "secret.png").write_bytes(b"harmless")
    shelf = LocalFiles(str(root), 100)
    monkeypatch.setattr(os.path, "realpath", and_then_swap)
    with pytest.raises(BadRequest):
        await shelf.read("sub/secret.png")
