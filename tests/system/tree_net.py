"""Several machines on one: networks of their own, joined by a bridge, and links between them that fail on demand.

Each machine is a network namespace with an address, all of them on one bridge, which is in a namespace too. The test
itself has an address on that bridge, so it reaches every machine. A namespace is held by a thread that lives in it:
processes started by the thread are in it too, and so is every socket that it opens, also when another thread uses it
afterwards. Nothing has a name in the file system: when the threads and their processes have ended, the kernel removes
all of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import TypeVar

import pytest

CLONE_NEWNET = 0x40000000
PATIENCE_S = 60.0
SUBNETS = 256  # 198.18.N.0/24: addresses that are set apart for measuring networks, and are nobody's
SUBNET_TRIES_MAX = 64
MACHINES_MAX = 200
HOST_NUMBER = 254
PARTITION_TABLE = "bridge partition"
RELAY = Path(__file__).with_name("tree_relay.py")

Value = TypeVar("Value")


class CannotBuild(Exception):
    """Not root, a command is missing, or the kernel refused; the text names the reason."""


class Namespace:
    """A network namespace, loopback up, and the thread that holds it. Close it. Raises CannotBuild."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"network {name}")
        try:
            self._fd = self.within(_new_namespace)
        except OSError as error:
            self._thread.shutdown()
            raise CannotBuild(f"may not make a network namespace here: {error.strerror}") from None
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        self.ip("link set lo up")

    def within(self, function: Callable[[], Value]) -> Value:
        """What the function gives when it is called in this network. Not to be called within."""
        return self._thread.submit(function).result(PATIENCE_S)

    def ip(self, *lines: str) -> None:
        """`ip` with each of these lines. Raises CannotBuild, also for a bad line."""
        self.within(lambda: batch("ip", *lines))

    def close(self) -> None:
        self._thread.shutdown()
        os.close(self._fd)


class Machine(Namespace):
    """A machine with one address. In the hub's namespace its link is called `port`."""

    def __init__(self, name: str, address: str, port: str) -> None:
        super().__init__(name)
        self.address = address
        self.port = port


class Net:
    """Machines by their names, and the faults of their links. Close it. Raises CannotBuild."""

    def __init__(self, names: Sequence[str]) -> None:
        assert len(set(names)) == len(names) <= MACHINES_MAX
        self.machines: dict[str, Machine] = {}
        self._relays: dict[str, subprocess.Popen[bytes]] = {}
        self.link = ""
        self._hub = Namespace("hub")
        self._closing = contextlib.ExitStack()
        self._closing.callback(self._hub.close)
        try:
            self._hub.ip("link add br0 type bridge", "link set br0 up")
            self._subnet = self._join()
            for number, name in enumerate(names, 1):
                self._add(name, number)
        except BaseException:
            self.close()
            raise

    def _join(self) -> str:
        """A link from the test to the bridge. Its name is taken by one run at a time, and so is its subnet."""
        taken = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=False).stdout
        for number in random.SystemRandom().sample(range(SUBNETS), SUBNET_TRIES_MAX):
            link, subnet = f"tailrace{number}", f"198.18.{number}"
            if f" {subnet}." in taken:
                continue
            try:
                batch("ip", f"link add {link} type veth peer name host netns {self._hub.path}")
            except CannotBuild as error:
                if "File exists" in str(error):
                    continue
                raise
            self.link = link
            self._hub.ip("link set host master br0 up")
            batch("ip", f"addr add {subnet}.{HOST_NUMBER}/24 dev {link}", f"link set {link} up")
            return subnet
        raise CannotBuild(f"none of {SUBNET_TRIES_MAX} subnets of 198.18.0.0/16 is free")

    def _add(self, name: str, number: int) -> None:
        port = f"m{number}"
        machine = Machine(name, f"{self._subnet}.{number}", port)
        self.machines[name] = machine
        self._closing.callback(machine.close)
        self._hub.ip(
            f"link add {port} type veth peer name eth0 netns {machine.path}",
            f"link set {port} master br0 up",
        )
        machine.ip(f"addr add {machine.address}/24 dev eth0", "link set eth0 up")

    # --- faults -----------------------------------------------------------------------------------------------------

    def cut(self, name: str) -> None:
        """Nothing goes to the machine or comes from it any more; its connections receive nothing."""
        self._hub.ip(f"link set {self.machines[name].port} down")

    def restore(self, name: str) -> None:
        self._hub.ip(f"link set {self.machines[name].port} up")

    def partition(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Nothing goes between the machines of the two sets. Ends the partition there was. Raises CannotBuild."""
        left, right = list(some), list(others)
        self.block([pair for a, b in product(left, right) for pair in ((a, b), (b, a))])

    def block(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Nothing goes from the first machine of a pair to the second. Replaces the pairs blocked before. Raises
        CannotBuild.
        """
        if shutil.which("nft") is None:
            raise CannotBuild("needs nft (nftables)")
        nft = [
            f"add table {PARTITION_TABLE}",
            f"delete table {PARTITION_TABLE}",
            f"add table {PARTITION_TABLE}",
            f"add chain {PARTITION_TABLE} forward {{ type filter hook forward priority 0; }}",
        ]
        for sender, receiver in pairs:
            ports = f'iifname "{self.machines[sender].port}" oifname "{self.machines[receiver].port}"'
            nft.append(f"add rule {PARTITION_TABLE} forward {ports} drop")
        self._hub.within(lambda: batch("nft", *nft))

    def heal(self) -> None:
        """End the partition, and all blocking."""
        self._hub.within(lambda: batch("nft", f"add table {PARTITION_TABLE}", f"delete table {PARTITION_TABLE}"))

    def impair(self, name: str, delay_ms: int, loss_percent: float) -> None:
        """Each way, every packet takes `delay_ms` longer, and `loss_percent` of them are lost.

        By netem if the kernel has it, and otherwise by a relay in between.
        """
        machine = self.machines[name]
        if has_netem():
            netem = f"root netem delay {delay_ms}ms loss {loss_percent}%"
            self._hub.within(lambda: batch("tc", f"qdisc replace dev {machine.port} {netem}"))
            machine.within(lambda: batch("tc", f"qdisc replace dev eth0 {netem}"))
        else:
            self.clear(name)
            self._put_relay(machine, delay_ms, loss_percent)

    def clear(self, name: str) -> None:
        """End what `impair` did, if it did."""
        machine = self.machines[name]
        if not has_netem():
            self._take_relay(machine)
            return
        with contextlib.suppress(CannotBuild):  # not impaired
            self._hub.within(lambda: batch("tc", f"qdisc del dev {machine.port} root"))
            machine.within(lambda: batch("tc", "qdisc del dev eth0 root"))

    def _put_relay(self, machine: Machine, delay_ms: int, loss_percent: float) -> None:
        port = machine.port
        self._hub.ip(f"link add {port}-far type veth peer name {port}-near")
        command = [sys.executable, str(RELAY), port, f"{port}-near", str(delay_ms), str(loss_percent)]
        relay = self._hub.within(lambda: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        self._relays[machine.name] = relay
        assert relay.stdout is not None and relay.stdout.readline(), "the relay does not start"
        self._hub.ip(f"link set {port} nomaster", f"link set {port}-far master br0 up", f"link set {port}-near up")

    def _take_relay(self, machine: Machine) -> None:
        relay = self._relays.pop(machine.name, None)
        if relay is not None:
            self._hub.ip(f"link del {machine.port}-far", f"link set {machine.port} master br0")
            end(relay)

    def close(self) -> None:
        """Everything is removed; processes that still run in a machine are cut off."""
        for relay in self._relays.values():
            end(relay)
        if self.link:
            subprocess.run(["ip", "link", "del", self.link], capture_output=True, check=False)
        self._closing.close()


@contextlib.contextmanager
def network(*names: str) -> Iterator[Net]:
    """Machines with these names for the length of a block; skips the test if they may not be made."""
    if shutil.which("ip") is None:
        pytest.skip("needs ip (iproute2)")
    try:
        net = Net(names)
    except CannotBuild as error:
        pytest.skip(str(error))
    try:
        yield net
    finally:
        net.close()


def batch(command: str, *lines: str) -> None:
    """`ip`, `tc` or `nft` with several lines at once. Raises CannotBuild."""
    flags = ["-f", "-"] if command == "nft" else ["-batch", "-"]
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run([command, *flags], input=text, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise CannotBuild(f"{command}: {'; '.join(lines)}: {done.stderr.strip()}")


def end(relay: subprocess.Popen[bytes]) -> None:
    relay.kill()
    relay.communicate()


_netem: list[bool] = []


def has_netem() -> bool:
    """Whether this kernel can delay and lose packets by itself: asked once, in a network that goes away again."""
    if not _netem:
        tried = Namespace("netem")
        try:
            tried.within(lambda: batch("tc", "qdisc add dev lo root netem delay 1ms"))
            _netem.append(True)
        except (CannotBuild, FileNotFoundError):
            _netem.append(False)
        finally:
            tried.close()
    return _netem[0]


def _new_namespace() -> int:
    """Put the calling thread into a new network; gives a descriptor of it. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
