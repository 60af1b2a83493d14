#!/usr/bin/env bash
# Boots systemd as process 1 of a container of its own: its own processes, mounts, network and cgroups, the machine's
# files below a layer that is thrown away. What it may not touch is read-only, as in any container.
# Usage: unshare --mount --pid --fork --uts --ipc --net --cgroup systemd_box.sh FOLDER INSTALL-SCRIPT UNIT
set -euo pipefail

folder=$1 install=$2 unit=$3
root=$folder/root layer=$folder/layer
mkdir -p "$root" "$layer"

mount --make-rprivate /
mount -t tmpfs tmpfs "$layer"
mkdir "$layer"/{upper,work}
mount -t overlay overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" "$root"
cp "$install" "$layer/install"

mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for place in dev run; do mount -t tmpfs tmpfs "$root/$place"; done
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root"/dev/{pts,shm,mqueue}
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
ln -s pts/ptmx "$root/dev/ptmx"
ip link set lo up

# Whatever else the machine would start at boot is not started here.
mkdir -p "$root/etc/systemd/system"
for other in getty.target local-fs.target multi-user.target swap.target tmp.mount systemd-modules-load.service \
    systemd-remount-fs.service systemd-tmpfiles-setup-dev.service systemd-tmpfiles-setup.service \
    systemd-udev-trigger.service systemd-udevd.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$other"
done

ROOT="$root" bash -euo pipefail "$layer/install"

cd "$root"
mkdir -p oldroot
pivot_root . oldroot
cd /
umount -l /oldroot
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system "--unit=$unit" --log-target=journal --show-status=0
