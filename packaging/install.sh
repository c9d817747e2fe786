#!/bin/sh
# install.sh DESTDIR PREFIX: `make install` and `make release` run it to copy bin/release/vnic and the other
# installed files to DESTDIR/PREFIX. bin/vnic-docs writes the man pages, completions and the backend's description.
set -eu
dest=$1$2 prefix=$2
here=$(dirname "$0")
umask 022
install -D -m 755 bin/release/vnic "$dest/bin/vnic"
# Management software starts a backend by its file name, without a subcommand.
mkdir -p "$dest/libexec"
ln -sfn ../bin/vnic "$dest/libexec/vhost-user-vnic"
bin/vnic-docs docs --dir "$dest/share" --backend "$prefix/libexec/vhost-user-vnic"
mkdir -p "$dest/lib/systemd/system"
sed "s|@bindir@|$prefix/bin|g" "$here/vnic@.service" > "$dest/lib/systemd/system/vnic@.service"
for f in README.md LICENSE; do install -D -m 644 $f "$dest/share/doc/vnic/$f"; done
install -D -m 644 "$here/INSTALL.md" "$dest/share/doc/vnic/INSTALL.md"
install -D -m 644 -t "$dest/share/doc/vnic/examples" guest/docs/devmem.c guest/docs/devmem.h
