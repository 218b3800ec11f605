"""Owns: lines to the hosts of a cluster, and the ssh settings that lead there.
Must not: hold tests.
Called by: tests of ssh."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from meshrun.launch.ssh import open_ssh
from meshrun.launch.ssh_target import Target
from meshrun.spec.values import Host, SshSettings
from tests.cluster import Cluster
from tests.launch.standin import Line, make_start

open_client = open_ssh


def settings_of(cluster: Cluster, **kwargs: Any) -> SshSettings:
    """The cluster's own ssh config."""
    return SshSettings(config=str(cluster.dir / "ssh_config"), **kwargs)


def line_to(cluster: Cluster, *hosts: Host, settings: SshSettings | None = None, **kwargs: Any) -> Line:
    """An opener for each host."""
    start = make_start(kwargs.pop("python", sys.executable), **kwargs)
    hosts = hosts or tuple(Host(host.name) for host in cluster.hosts)
    return Line(*(open_client(host, settings or settings_of(cluster), 30.0, start) for host in hosts))


def config_with(cluster: Cluster, tmp_path: Path, extra: str) -> SshSettings:
    """The cluster's config with settings that come first."""
    path = tmp_path / "ssh_config"
    path.write_text(f"{extra}\nHost *\n" + (cluster.dir / "ssh_config").read_text())
    return SshSettings(config=str(path))


def make_known(cluster: Cluster, tmp_path: Path, text: str, **kwargs: Any) -> tuple[SshSettings, Path]:
    """Settings with a known_hosts file of their own, and that file."""
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return replace(config_with(cluster, tmp_path, f"UserKnownHostsFile {file}"), **kwargs), file


def known_name(cluster: Cluster) -> str:
    """What the first host is called in known_hosts."""
    host = cluster.hosts[0]
    return host.address if host.port == 22 else f"[{host.address}]:{host.port}"


def make_target(**kwargs: Any) -> Target:
    """A Target for tests that connect nowhere."""
    plain: dict[str, Any] = {
        "name": "h",
        "hostname": "h",
        "port": 22,
        "user": "u",
        "user_said": False,
        "port_said": False,
        "identities": (),
        "identities_only": False,
        "default_keys": (),
        "agent": None,
        "key_name": "h",
        "known_hosts": (),
        "accept_new": False,
    }
    return Target(**plain | kwargs)
