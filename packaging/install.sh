#!/bin/sh
# install.sh DESTDIR PREFIX: what `make install` and `make release` do with what was built:
# bin/release/vnic, and bin/vnic-docs, which writes what is beside it.
set -eu
dest=$1$2 prefix=$2
here=$(dirname "$0")
umask 022
install -D -m 755 bin/release/vnic "$dest/bin/vnic"
# Management software starts a backend by a name, with no subcommand.
mkdir -p "$dest/libexec"
ln -sfn ../bin/vnic "$dest/libexec/vhost-user-vnic"
bin/vnic-docs docs --dir "$dest/share" --backend "$prefix/libexec/vhost-user-vnic"
mkdir -p "$dest/lib/systemd/system"
sed "s|@bindir@|$prefix/bin|g" "$here/vnic@.service" > "$dest/lib/systemd/system/vnic@.service"
for f in README.md LICENSE; do install -D -m 644 $f "$dest/share/doc/vnic/$f"; done
install -D -m 644 "$here/INSTALL.md" "$dest/share/doc/vnic/INSTALL.md"
install -D -m 644 -t "$dest/share/doc/vnic/examples" guest/docs/devmem.c guest/docs/devmem.h
