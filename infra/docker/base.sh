#!/usr/bin/env bash
# Builds debian:bookworm-slim with debootstrap, for machines that cannot pull images. Run it as root on Debian or Ubuntu:
#   infra/docker/base.sh [TAG]
# Like Debian's image of this name, it has no documentation and no apt caches.
set -euo pipefail

tag=${1:-debian:bookworm-slim}
mirror=${MIRROR:-http://deb.debian.org}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

debootstrap --variant=minbase bookworm "$root" "$mirror/debian"
printf 'deb %s main\n' \
    "$mirror/debian bookworm" "$mirror/debian bookworm-updates" "$mirror/debian-security bookworm-security" \
    >"$root/etc/apt/sources.list"
printf 'path-exclude %s\n' '/usr/share/doc/*' '/usr/share/man/*' '/usr/share/info/*' '/usr/share/locale/*' \
    >"$root/etc/dpkg/dpkg.cfg.d/docker"
echo 'path-include /usr/share/doc/*/copyright' >>"$root/etc/dpkg/dpkg.cfg.d/docker"
echo 'Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";' >"$root/etc/apt/apt.conf.d/docker-clean"
find "$root"/usr/share/{man,info,locale} -type f -delete
find "$root/usr/share/doc" -type f ! -name copyright -delete
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/*.log
tar -C "$root" -c . | docker import --change 'CMD ["bash"]' - "$tag"
