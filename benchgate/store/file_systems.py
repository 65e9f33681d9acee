"""Is a file on this machine's own disk? SQLite's write-ahead log needs memory that all its users share.

Over a network file system each machine has a memory of its own, and locks are often a courtesy: two writers then damage
the file without either of them seeing an error (sqlite.org/wal.html, sqlite.org/howtocorrupt.html).
"""

from __future__ import annotations

import re
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")

NETWORK = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs",
        "gfs2", "ocfs2", "orangefs", "pvfs2", "davfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.s3fs",
        "fuse.gcsfuse", "fuse.rclone", "fuse.juicefs", "fuse.goofys", "fuse.mount-s3", "fuse.blobfuse2",
    }
)  # fmt: skip
"""File systems that other machines may write to at the same time."""


def network_file_system(path: Path, mounts: Path | None = None) -> str | None:
    """The kind of network file system that a file (there or not) is on; None for any other, or where nobody says.

    `mounts` is the kernel's table of mounted file systems (proc_pid_mountinfo(5)).
    """
    try:
        table = (mounts or _MOUNTS).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None  # another system: whether the log can be kept is tried when it is turned on
    place = path.expanduser().absolute().resolve()
    found: tuple[int, str] = (-1, "")
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        words, kinds = left.split(" "), right.split(" ")
        if len(words) < 5:
            continue
        point = Path(_OCTAL.sub(lambda octal: chr(int(octal[1], 8)), words[4]))
        # A later mount on the same place, or on a deeper one, hides the earlier one.
        if place.is_relative_to(point) and len(point.parts) >= found[0]:
            found = len(point.parts), kinds[0]
    return found[1] if found[1] in NETWORK else None
