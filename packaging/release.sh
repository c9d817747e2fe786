#!/bin/sh
# release.sh VERSION PREFIX: makes dist/vnic-VERSION-linux-amd64.tar.gz of what was built, and its
# SHA-256. The same commit gives the same bytes, wherever and whenever it is built with the same Go:
# nothing in it has a time or an owner of its own.
set -eu
name=vnic-$1-linux-amd64
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
"$(dirname "$0")/install.sh" "$stage" "$2"
mv "$stage$2" "$stage/$name"
cp README.md LICENSE packaging/INSTALL.md "$stage/$name/"
chmod 644 "$stage/$name"/*.md "$stage/$name/LICENSE"
chmod 755 "$stage/$name"
mkdir -p dist
tar -C "$stage" --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
  -cf - "$name" |
  gzip -9n > "dist/$name.tar.gz.new"
mv "dist/$name.tar.gz.new" "dist/$name.tar.gz"
cd dist
sha256sum "$name.tar.gz" > "$name.tar.gz.sha256"
echo "dist/$name.tar.gz"
