"""The filter of system calls: a table of what is forbidden, and the program the kernel runs for it.

What nobody who computes needs is refused; a list of what is allowed would break with the next
libc. Numbers above the newest known one do not exist for the process: what a future kernel adds is
not allowed by oversight. It must not know processes or policies beyond `FilterPolicy`.

Invariant: the verdict on a call that is always allowed depends on its number alone, so the kernel
keeps it in a table (Linux 5.11) and the filter costs the common calls nothing measurable.
"""

import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

NEWEST_KNOWN = 469
"""file_setattr of Linux 6.17. New calls have the same number on every machine."""

_CALLS: Mapping[str, tuple[int | None, int | None]] = {
    # Name: number on x86_64, on aarch64.
    # Programs and processes (`clone` is looked at below: a thread is no process)
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "unshare": (272, 97),
    "setns": (308, 268),
    "personality": (135, 92),
    # Connections
    "socket": (41, 198),
    "socketpair": (53, 199),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
    # Other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "tkill": (200, 130),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # Memory that outlives the process
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # Names in the file system that neither reading nor a cache needs
    "mknod": (133, None),
    "mknodat": (259, 33),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "link": (86, None),
    "linkat": (265, 37),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    # Mounts
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # Large parts of the kernel behind one call each
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # The machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "lookup_dcookie": (212, 18),
    # Identity
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setgroups": (116, 159),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "capset": (126, 91),
}

_CALLS_THAT_WRITE_FILES: Mapping[str, tuple[int | None, int | None]] = {
    "creat": (85, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "truncate": (76, 45),
}

_CALLS_WITHOUT_WHICH_LIBC_DOES: Mapping[str, tuple[int | None, int | None]] = {
    # Their arguments lie in memory, where a filter can't look; libc then takes the older call.
    "clone3": (435, 435),
    "openat2": (437, 437),
}

_CLONE = (56, 220)
_CLONE_THREAD = 0x10000
_OPEN = (2, None)
_OPENAT = (257, 56)
_OPENING_TO_WRITE = 0x243  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
_KILL = (62, 129)
_TGKILL = (234, 131)
_RT_SIGQUEUEINFO = (129, 138)
_RT_TGSIGQUEUEINFO = (297, 240)
_PRLIMIT = (302, 261)
_IOCTL = (16, 29)
_TYPES_INTO_A_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX


@dataclass(frozen=True, slots=True)
class FilterPolicy:
    """What the filter leaves. `allowed` names calls of the table that a driver needs."""

    may_write_files: bool = False
    may_open_to_write: bool = False
    """Only that: names are still neither made, moved nor removed by calls of their own."""
    allowed: tuple[str, ...] = ()


# Classic BPF: operation, jump if true, jump if false, operand.
_Instruction = tuple[int, int, int, int]
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16

_ALLOW = (_RETURN, 0, 0, 0x7FFF0000)
_FORBIDDEN = (_RETURN, 0, 0, 0x00050000 | errno.EPERM)
_UNKNOWN = (_RETURN, 0, 0, 0x00050000 | errno.ENOSYS)


def build_filter(machine: str, policy: FilterPolicy, pid: int) -> bytes | None:
    """The program, or None for a machine without a table. `pid` is the one process that the
    process may send signals to and set limits of: itself."""
    if machine not in _ARCHITECTURES:
        return None
    column = list(_ARCHITECTURES).index(machine)
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        _FORBIDDEN,  # calls of another machine, which x86_64 can make too
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_GREATER, 0, 1, NEWEST_KNOWN),
        _UNKNOWN,
    ]

    def add(numbers: tuple[int | None, int | None], body: Sequence[_Instruction]) -> None:
        number = numbers[column]
        if number is not None:
            program.extend([(_EQUAL, 0, len(body), number), *body])

    forbidden = dict(_CALLS)
    if not policy.may_write_files:
        forbidden |= _CALLS_THAT_WRITE_FILES
        if not policy.may_open_to_write:
            add(_OPEN, _forbid_bits(1, _OPENING_TO_WRITE))
            add(_OPENAT, _forbid_bits(2, _OPENING_TO_WRITE))
    for name in policy.allowed:
        assert forbidden.pop(name, None) is not None, f"{name} is not in the table"
    for numbers in forbidden.values():
        add(numbers, [_FORBIDDEN])
    for numbers in _CALLS_WITHOUT_WHICH_LIBC_DOES.values():
        add(numbers, [_UNKNOWN])
    add(_CLONE, [_load(0), (_ANY_BIT, 1, 0, _CLONE_THREAD), _FORBIDDEN, _ALLOW])
    for signal in (_KILL, _TGKILL, _RT_SIGQUEUEINFO, _RT_TGSIGQUEUEINFO):
        add(signal, _only_values(0, (pid,)))
    add(_PRLIMIT, _only_values(0, (0, pid)))
    add(_IOCTL, _forbid_values(1, _TYPES_INTO_A_TERMINAL))
    program.append(_ALLOW)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _load(argument: int) -> _Instruction:
    """The lower half of an argument; both machines are little-endian."""
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument)


def _forbid_bits(argument: int, mask: int) -> list[_Instruction]:
    return [_load(argument), (_ANY_BIT, 0, 1, mask), _FORBIDDEN, _ALLOW]


def _only_values(argument: int, values: Sequence[int]) -> list[_Instruction]:
    checks: list[_Instruction] = [
        (_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)
    ]
    return [_load(argument), *checks, _FORBIDDEN, _ALLOW]


def _forbid_values(argument: int, values: Sequence[int]) -> list[_Instruction]:
    checks: list[_Instruction] = [
        (_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)
    ]
    return [_load(argument), *checks, _ALLOW, _FORBIDDEN]
