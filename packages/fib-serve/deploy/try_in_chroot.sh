#!/usr/bin/env bash
# Run the steps of the Containerfile in a chroot, where no container can be built, and `fib-serve run` as its user.
# usage, as root from the root of the repository: try_in_chroot.sh ROOT
# ROOT is a Debian with Python, such as `debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates
# bookworm ROOT` makes it: the base image of the Containerfile, with its newer Python, is not tried.
set -euo pipefail
root=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
ln -sf python3 "$root/usr/bin/python"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
trap 'umount "$root/proc"' EXIT

# one instruction a line
sed -e '/^#/d' -e ':more;/\\$/{N;s/\\\n//;b more}' "$here/Containerfile" | while read -r instruction words; do
  case $instruction in
    COPY)
      read -r from to <<<"$words"
      mkdir -p "$root$to"
      cp -r "$from/." "$root$to"
      ;;
    RUN)
      echo "RUN $words"
      chroot "$root" /bin/bash -euo pipefail -c "$words" </dev/null
      ;;
  esac
done

mkdir -p "$root/var/lib/fib-serve/data/definitions"
chroot "$root" chown -R 10001 /var/lib/fib-serve
in_container() {
  (cd / && chroot --userspec=10001:0 "$root" /usr/bin/env HOME=/var/lib/fib-serve "$@")
}
in_container /opt/fib-serve/bin/fib-serve --version
in_container timeout 60 /opt/fib-serve/bin/fib-serve run /var/lib/fib-serve/data --devices cpu --no-auth || echo "it ended with status $?; 124 is that of the time limit"
