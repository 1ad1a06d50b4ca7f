"""Files are written whole or not at all, also when the disk is full."""

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest

from swsgp.files import check_writable, replacing, write


def test_a_file_is_replaced_by_the_new_content(tmp_path):
    path = tmp_path / "f"
    write(path, b"one")
    write(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["f"]


def test_a_new_file_has_the_rights_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write(tmp_path / "ours", b"")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail():
        with replacing(path) as new:
            new.write_bytes(b"half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 kB, where this process may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small file system takes rights that are not there")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_old_file_and_nothing_else(small_disk):
    path = small_disk / "f"
    write(path, b"old")
    with pytest.raises(OSError, match="No space left"):
        write(path, b"x" * 1_000_000)
    assert path.read_bytes() == b"old"
    assert os.listdir(small_disk) == ["f"]


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path):
    check_writable(tmp_path / "fine")
    assert not os.listdir(tmp_path)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"there is no such folder: .*no'$"):
        check_writable(Path(tmp_path) / "no" / "folder")
