"""How a child process gives up what it will not need: after this, code in it can do little harm.

A loader reads what strangers made, and a device child runs it: should either be taken over through
a fault in a library, it must not start processes, open connections, write files or touch other
processes. Each measure is the kernel's (`Measure`), each is tried alone, and `confine` tells which
took effect: a kernel without one of them still serves. What is forbidden returns EPERM and does not
kill, so an honest mistake is an error that can be read.

It must not know what the process is for: a `Policy` says what stays allowed.

Written by hand, in ctypes: `pyseccomp` needs libseccomp beside it, the Landlock bindings on PyPI
are young and know no seccomp, and each would be one more package that runs before the door is shut.

Invariant: nothing here can be undone by the process. Landlock and capabilities are properties of
the calling thread and those that it starts, so `confine` comes before any other thread.
"""

import ctypes
import enum
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpumuxd.wire.seccomp import FilterPolicy, build_filter

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38

_SECCOMP_SET_MODE_FILTER = 1
_SECCOMP_FLAGS = 1 | 4
"""All threads at once; and no mitigation of speculation that would slow every branch (before Linux
5.16 a filter brought it along)."""

_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_V3 = 0x20080522
_CAPABILITIES_MAX = 64

# Landlock's system calls have the same numbers everywhere.
_SYS_LANDLOCK_CREATE_RULESET, _SYS_LANDLOCK_ADD_RULE, _SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_VERSION_FLAG = 1
_LANDLOCK_PATH_BENEATH = 1
_LANDLOCK_TCP = 0b11
"""Binding and connecting, from ABI 4 on."""
_LANDLOCK_SCOPES = 0b11
"""Abstract sockets of, and signals to, processes outside; from ABI 6 on."""

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _TRUNCATE = 1 << 5, 1 << 7, 1 << 8, 1 << 14
_READING = _READ_FILE | _READ_DIR
_WRITING = _WRITE_FILE | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
_RIGHTS_COUNT = {1: 13, 2: 14, 3: 15, 4: 15}
"""Rights on files that each ABI knows, 16 from the fifth on."""

_NOBODY = 65534
"""What Linux itself calls an account that stands for no account (`overflowuid`)."""


class Measure(enum.StrEnum):
    """One thing that is given up."""

    NO_NEW_PRIVILEGES = "no_new_privileges"
    UNPRIVILEGED = "unprivileged"
    NOT_DUMPABLE = "not_dumpable"
    LANDLOCK = "landlock"
    SECCOMP = "seccomp"


@dataclass(frozen=True, slots=True)
class Policy:
    """What stays allowed. The default is a process that only computes."""

    may_read_files: bool = False
    """Open files by name to read them. Python imports lazily, so whoever may not has to import
    all it needs before."""

    writable_folder: str | None = None
    """Create, write and remove files below it. It must exist."""

    reopens_own_memory: bool = False
    """Open memory files of its own to write them, by their names in /proc. Landlock leaves those
    alone and refuses all other files, so where it is in force the filter lets opening to write
    pass. Where it is not, the filter refuses that as ever, and so these."""

    leaves_root: bool = True
    """Become `nobody` if it is root. Either way all capabilities go."""

    is_dumpable: bool = False
    """May processes of the same account look into it (`/proc/PID/maps`, a debugger)?"""

    system_calls: FilterPolicy | None = None
    """None: what follows from the rest. A device with drivers of its own needs more."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """What `confine` achieved: the measures in force, and why each of the others is not."""

    applied: tuple[Measure, ...]
    missing: tuple[tuple[Measure, str], ...]


class Unavailable(Exception):
    """This kernel or machine does not offer a measure."""


def confine(policy: Policy) -> Confinement:
    """Apply all that this kernel offers, to this process, for good. Never raises.

    A change of user clears the parent-death signal: set it again and look for the parent.
    """
    applied: list[Measure] = []
    missing: list[tuple[Measure, str]] = []
    for measure, apply in _measures(policy, applied):
        try:
            apply()
            applied.append(measure)
        except (OSError, Unavailable, ValueError) as error:
            missing.append((measure, str(error)))
    return Confinement(tuple(applied), tuple(missing))


def _measures(
    policy: Policy, applied: Sequence[Measure]
) -> Iterator[tuple[Measure, Callable[[], None]]]:
    """In the order in which each is still possible. `applied` grows meanwhile."""
    yield Measure.NO_NEW_PRIVILEGES, lambda: _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    yield Measure.UNPRIVILEGED, lambda: _drop_privileges(policy.leaves_root)
    yield Measure.LANDLOCK, lambda: _restrict_files(policy)
    if not policy.is_dumpable:
        yield Measure.NOT_DUMPABLE, lambda: _prctl(_PR_SET_DUMPABLE, 0)
    has_landlock = Measure.LANDLOCK in applied
    yield Measure.SECCOMP, lambda: _filter_system_calls(policy, has_landlock)


# Users and capabilities


def _drop_privileges(leaves_root: bool) -> None:
    """Leave root if asked, and all capabilities in any case."""
    problem: OSError | None = None
    if os.geteuid() == 0:
        for capability in range(_CAPABILITIES_MAX):
            with suppress(OSError):  # one that this kernel does not have
                _prctl(_PR_CAPBSET_DROP, capability)
        if leaves_root:
            try:
                _become_nobody()
            except OSError as error:  # a container may have no such id
                problem = error
    _drop_capabilities()
    if problem is not None:
        raise problem


def _become_nobody() -> None:
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _system_call(_number(_SYS_CAPSET), ctypes.byref(header), ctypes.byref(nothing))


# Landlock: files, TCP, signals


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    )


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def landlock_abi() -> int:
    """Version of this kernel's Landlock, 0 if it has none."""
    try:
        return _system_call(_SYS_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION_FLAG)
    except OSError:
        return 0


def _restrict_files(policy: Policy) -> None:
    abi = landlock_abi()
    if abi < 1:
        raise Unavailable("this kernel has no Landlock, or it is switched off")
    handled = (1 << _RIGHTS_COUNT.get(abi, 16)) - 1
    if policy.may_read_files:
        handled &= ~_READING
    attributes = _RulesetAttributes(
        handled, _LANDLOCK_TCP if abi >= 4 else 0, _LANDLOCK_SCOPES if abi >= 6 else 0
    )
    # What an older kernel does not know must not even be in the structure.
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _system_call(_SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    try:
        if policy.writable_folder is not None:
            _allow_below(ruleset, policy.writable_folder, (_WRITING | _READING) & handled)
        _system_call(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow_below(ruleset: int, folder: str, rights: int) -> None:
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(rights, fd)
        _system_call(_SYS_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(fd)


# Seccomp: system calls


class _FilterProgram(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _filter_system_calls(policy: Policy, has_landlock: bool) -> None:
    allowed = policy.system_calls
    if allowed is None:
        allowed = FilterPolicy(
            may_write_files=policy.writable_folder is not None,
            may_open_to_write=policy.reopens_own_memory and has_landlock,
        )
    machine = platform.machine()
    code = build_filter(machine, allowed, os.getpid())
    if code is None:
        raise Unavailable(f"no table of system calls for {machine}")
    program = _FilterProgram(len(code) // 8, code)
    result = _system_call(
        _number(_SYS_SECCOMP), _SECCOMP_SET_MODE_FILTER, _SECCOMP_FLAGS, ctypes.byref(program)
    )
    if result != 0:
        raise Unavailable(f"thread {result} could not be brought under the filter")


# The kernel's door


def folder_if_it_can_be_had(path: str) -> str | None:
    """The folder, made if it is not there; None if that can't be done."""
    with suppress(OSError):
        Path(path).mkdir(parents=True, exist_ok=True)
        return path
    return None


def _number(numbers: dict[str, int]) -> int:
    machine = platform.machine()
    if machine not in numbers:
        raise Unavailable(f"no number of this system call for {machine}")
    return numbers[machine]


_libc = ctypes.CDLL(None, use_errno=True)


def _system_call(number: int, *arguments: object) -> int:
    """Raises OSError."""
    words = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    result = int(_libc.syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _prctl(option: int, value: int) -> None:
    # The last four words must be 0 where they mean nothing, or the kernel says EINVAL.
    arguments = [ctypes.c_ulong(each) for each in (value, 0, 0, 0)]
    if _libc.prctl(ctypes.c_int(option), *arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
