"""Owns: real hosts for tests on this one machine: namespaces with an sshd each, or loopback addresses without root.
Must not: leave anything behind, also when the test is killed: every host dies with it, and its network with the host.
Called by: tests/conftest.py (fixtures `make_cluster`, `cluster`) and bench/."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.cluster_parts import (
    ME,
    ClusterHost,
    Process,
    can_make_namespaces,
    change_shell,
    die_with_parent,
    do,
    end,
    find_port,
    list_processes,
    make_key,
    wait_for_child,
    wait_for_namespace,
    wait_for_sshd,
)

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or "/usr/sbin/sshd"
_counter = itertools.count()

# A queue that lets nothing through (netem, made for this, is not in every kernel).
_NOTHING_PASSES = ("tbf", "rate", "8bit", "burst", "1", "limit", "1")

# pid 1 of a host: mounts and network are ready when it is started; it runs sshd, reaps what is orphaned, and ends only
# by being killed. Plain Python, because a shell reaps only the children it knows.
_INIT = """
import os, sys, signal
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
sys.stdin.readline()
os.spawnvp(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.pause()
"""


class Cluster:
    """What both kinds have: `hosts`, keys and files for the client, `hostfile`, `processes`, `write`, `close`.

    `dir` holds `id` (client key), `known_hosts`, `ssh_config`; `options` are the meshrun options that use them."""

    kind = ""
    can_crash = False

    def __init__(self, n: int, sshd: str = "", shell: str | None = None) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="meshrun-cluster-", dir="/var/tmp"))
        self.hosts: tuple[ClusterHost, ...] = ()
        self._sshd_extra = sshd
        self._shell = shell
        self._stack = contextlib.ExitStack()
        self._stack.callback(shutil.rmtree, self.dir, ignore_errors=True)
        try:
            make_key(self.dir / "id")
            self._begin(n)
            self._write_client_files()
            for host in self.hosts:
                wait_for_sshd(host)
        except BaseException:
            self.close()
            raise

    def _begin(self, n: int) -> None:
        raise NotImplementedError

    @property
    def options(self) -> list[str]:
        """Options of the meshrun command line that make it use this cluster's keys and files only."""
        return ["--ssh-config", str(self.dir / "ssh_config")]

    def hostfile(self, slots: int | Sequence[int] | None = None) -> str:
        """Hostfile text, one line a host, by name."""
        counts = [slots] * len(self.hosts) if slots is None or isinstance(slots, int) else list(slots)
        return "".join(
            f"{h.name}{'' if s is None else f' slots={s}'}\n" for h, s in zip(self.hosts, counts, strict=True)
        )

    def run(self, i: int, argv: Sequence[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on host `i`, not through ssh."""
        return subprocess.run([*self._enter(i), *argv], capture_output=True, text=True, timeout=60, **kwargs)

    def processes(self, i: int) -> list[Process]:
        """What runs on host `i`, without its init and everything called sshd."""
        return [p for p in self._all(i) if not Path(p.command.split(" ")[0].rstrip(":")).name.startswith("sshd")]

    def wait_empty(self, i: int, within_s: float = 10.0) -> list[Process]:
        """Wait until nothing runs on host `i`; returns what still does at the end."""
        deadline = time.monotonic() + within_s
        while (left := self.processes(i)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def write(self, i: int, path: str, text: str) -> None:
        """Write a file as host `i` sees it (an rc file, /etc/hosts, a hosts file)."""
        self.run(i, ["/bin/sh", "-c", 'cat > "$0"', path], input=text, check=True)

    def close(self) -> None:
        """End every host and remove all files. Idempotent."""
        self._stack.close()

    # ---- parts of both ----

    def _enter(self, i: int) -> list[str]:
        return []

    def _all(self, i: int) -> Iterable[Process]:
        return ()

    def _write_sshd(self, i: int, address: str, port: int) -> Path:
        here = self.dir / f"host{i}"
        make_key(here / "hostkey")
        shutil.copy(self.dir / "id.pub", here / "authorized_keys")
        config = here / "sshd_config"
        config.write_text(
            textwrap.dedent(f"""\
            ListenAddress {address}
            Port {port}
            HostKey {here}/hostkey
            AuthorizedKeysFile {here}/authorized_keys
            PidFile none
            StrictModes no
            UsePAM {"no" if ME.pw_uid == 0 else "yes"}
            UseDNS no
            PermitRootLogin prohibit-password
            PasswordAuthentication no
            KbdInteractiveAuthentication no
            PrintMotd no
            """)
            + ("" if "MaxStartups" in self._sshd_extra else "MaxStartups 200\n")
            + self._sshd_extra
        )
        return config

    def _write_client_files(self) -> None:
        known, config = [], []
        for i, host in enumerate(self.hosts):
            name = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
            key = (self.dir / f"host{i}" / "hostkey.pub").read_text().split()
            known.append(f"{name} {key[0]} {key[1]}\n")
            config.append(f"Host {host.name} {host.address}\n  HostName {host.address}\n  Port {host.port}\n")
        (self.dir / "known_hosts").write_text("".join(known))
        general = (
            f"Host *\n  User {ME.pw_name}\n  IdentityFile {self.dir}/id\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.dir}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        )
        (self.dir / "ssh_config").write_text("".join(config) + general)

    def _spawn(self, argv: Sequence[str], **kwargs: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv, start_new_session=True, preexec_fn=die_with_parent, **kwargs)
        self._stack.callback(end, process)
        return process


class NamespaceCluster(Cluster):
    """Hosts with a network, pid, uts and mount namespace each: own /tmp, /dev/shm, /run, home and /etc/hosts.

    `shared`: directories under a private one (the home, /tmp) that every host sees at the same path, like a network
    file system. The launcher's side is this machine itself, on the same segment at `.254`."""

    kind = "namespaces"
    can_crash = True

    def __init__(self, n: int, sshd: str = "", shell: str | None = None, shared: Iterable[Path | str] = ()) -> None:
        self._shared = [Path(sys.prefix), Path(sys.base_prefix), Path.cwd(), *map(Path, shared)]
        self._inits: list[int] = []
        self._spaces: list[str] = []
        super().__init__(n, sshd, shell)

    def crash(self, i: int) -> None:
        """Kill host `i`'s pid 1: everything on it is gone at once."""
        os.kill(self._inits[i], signal.SIGKILL)

    def cut(self, i: int, way: str = "both") -> None:
        """Host `i`'s network link is dead `both` ways, or for what goes `out` of it or `in`: nobody is told."""
        if way == "both":
            self._on_switch("ip", "link", "set", f"h{i}", "down")
        elif way == "out":
            do(*self._enter(i), "tc", "qdisc", "add", "dev", "eth0", "root", *_NOTHING_PASSES)
        else:
            self._on_switch("tc", "qdisc", "add", "dev", f"h{i}", "root", *_NOTHING_PASSES)

    def heal(self, i: int, way: str = "both") -> None:
        """Undo `cut`."""
        if way == "both":
            self._on_switch("ip", "link", "set", f"h{i}", "up")
        elif way == "out":
            do(*self._enter(i), "tc", "qdisc", "del", "dev", "eth0", "root")
        else:
            self._on_switch("tc", "qdisc", "del", "dev", f"h{i}", "root")

    def path(self, i: int, path: str) -> Path:
        """Where a file in host `i`'s private /tmp or home lies on this machine."""
        for mount, source in self._private(i):
            if path == mount or path.startswith(mount + "/"):
                return source / path[len(mount) + 1 :]
        raise ValueError(path)

    def _begin(self, n: int) -> None:
        self._tag = f"mr{os.getpid() % 10**6}x{next(_counter) % 1000}"
        self._net = self._take_subnet()
        self.hosts = tuple(ClusterHost(f"n{i}", f"{self._net}.{i + 1}", 22) for i in range(n))
        # The switch has a namespace of its own: bridges there see no firewall, and no veth outlives its process.
        self._switch = self._spawn(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL).pid
        wait_for_namespace(self._switch, "net")
        self._on_switch("ip", "link", "add", "name", "switch", "type", "bridge")
        self._on_switch("ip", "link", "set", "switch", "up")
        self._plug("launcher", self._tag, None, f"{self._net}.254")
        # It would go with the switch, but some time later.
        self._stack.callback(subprocess.run, ["ip", "link", "del", self._tag], capture_output=True)
        starts = [self._start_host(i) for i in range(n)]
        for i, process in enumerate(starts):
            init = wait_for_child(process.pid)
            self._inits.append(init)
            self._spaces.append(os.readlink(f"/proc/{init}/ns/pid"))
            self._plug(f"h{i}", "eth0", init, self.hosts[i].address)
            assert process.stdin
            process.stdin.write(b"go\n")
            process.stdin.close()

    def _take_subnet(self) -> str:
        """10.77.X: an abstract socket is the lock, so it is free again however we end."""
        for step in range(256):
            number = (os.getpid() * 7 + next(_counter) + step) % 256
            lock = socket.socket(socket.AF_UNIX)
            try:
                lock.bind(f"\0meshrun-cluster-{number}")
            except OSError:
                lock.close()
                continue
            self._stack.callback(lock.close)
            return f"10.77.{number}"
        raise RuntimeError("no subnet is free")

    def _plug(self, port: str, name: str, pid: int | None, address: str) -> None:
        """A cable from the switch's `port` to interface `name` in the network of `pid` (None: this machine)."""
        self._on_switch(
            "ip", "link", "add", "name", port, "type", "veth", "peer", "name", name, "netns", str(pid or os.getpid())
        )
        self._on_switch("ip", "link", "set", port, "master", "switch", "up")
        enter = ["nsenter", f"--net=/proc/{pid}/ns/net"] if pid else []
        do(*enter, "ip", "addr", "add", f"{address}/24", "dev", name)
        do(*enter, "ip", "link", "set", name, "up")
        if pid:
            do(*enter, "ip", "link", "set", "lo", "up")

    def _on_switch(self, *argv: str) -> None:
        do("nsenter", f"--net=/proc/{self._switch}/ns/net", *argv)

    def _private(self, i: int) -> list[tuple[str, Path]]:
        here = self.dir / f"host{i}"
        return [("/tmp", here / "tmp"), (ME.pw_dir, here / "home")]

    def _start_host(self, i: int) -> subprocess.Popen[bytes]:
        here = self.dir / f"host{i}"
        here.mkdir()
        config = self._write_sshd(i, self.hosts[i].address, 22)
        lines = "".join(f"{h.address} {h.name}\n" for h in self.hosts)
        (here / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{lines}")
        script = "\n".join([*self._mounts(i), 'exec "$@"'])
        unshare = ["unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--net", "--uts", "--mount", "--ipc"]
        init = [sys.executable, "-I", "-S", "-c", _INIT, SSHD, "-D", "-E", str(here / "sshd.log"), "-f", str(config)]
        return self._spawn([*unshare, "/bin/sh", "-ec", script, "sh", *init], stdin=subprocess.PIPE)

    def _mounts(self, i: int) -> list[str]:
        here = self.dir / f"host{i}"
        script = [f"hostname {self.hosts[i].name}", f"mount --bind {here}/hosts /etc/hosts"]
        script += ["mount -t tmpfs -o mode=755 tmpfs /run", "mkdir /run/sshd", "mount -t tmpfs tmpfs /dev/shm"]
        if self._shell:
            text = "".join(change_shell(line, self._shell) for line in Path("/etc/passwd").read_text().splitlines(True))
            (here / "passwd").write_text(text)
            script.append(f"mount --bind {here}/passwd /etc/passwd")
        for mount, source in self._private(i):
            source.mkdir(mode=0o1777 if mount == "/tmp" else 0o700)
            source.chmod(0o1777 if mount == "/tmp" else 0o700)
            for path in sorted({p.resolve() for p in self._shared}):
                if path.is_relative_to(mount) and str(path) != mount:
                    inside = source / path.relative_to(mount)
                    inside.mkdir(parents=True, exist_ok=True)
                    script.append(f"mount --bind '{path}' '{inside}'")
            script.append(f"mount --rbind '{source}' '{mount}'")
        return script

    def _enter(self, i: int) -> list[str]:
        return ["nsenter", "-t", str(self._inits[i]), "-m", "-u", "-n", "-p", "-i", "--"]

    def _all(self, i: int) -> Iterable[Process]:
        return [p for p in list_processes() if p.pid != self._inits[i] and self._is_there(p.pid, i)]

    def _is_there(self, pid: int, i: int) -> bool:
        try:
            return os.readlink(f"/proc/{pid}/ns/pid") == self._spaces[i]
        except OSError:
            return False


class LoopbackCluster(Cluster):
    """Addresses 127.0.0.N with an sshd of one's own on a high port: one machine, no crash, no cut, nothing private."""

    kind = "loopback"

    def _begin(self, n: int) -> None:
        if self._shell:
            raise RuntimeError("another login shell needs namespaces")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        hosts = []
        for i in range(n):
            (self.dir / f"host{i}").mkdir()
            address = f"127.0.0.{10 + i}"
            host = ClusterHost(f"n{i}", address, find_port(address))
            config = self._write_sshd(i, address, host.port)
            self._spawn([SSHD, "-D", "-E", str(self.dir / f"host{i}/sshd.log"), "-f", str(config)])
            self._stack.callback(self._kill_all, i)
            hosts.append(host)
        self.hosts = tuple(hosts)

    def _kill_all(self, i: int) -> None:
        """Sessions outlive the sshd that took them in."""
        for process in self._all(i):
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)

    def _all(self, i: int) -> Iterable[Process]:
        """Descendants of host `i`'s sshd; what has left the tree cannot be told from others here."""
        everything = list(list_processes())
        config = str(self.dir / f"host{i}/sshd_config")
        found = {p.pid for p in everything if config in p.command}
        while more := {p.pid for p in everything if p.ppid in found} - found:
            found |= more
        return [p for p in everything if p.pid in found]


__all__ = ["Cluster", "ClusterHost", "LoopbackCluster", "NamespaceCluster", "Process", "can_make_namespaces"]
