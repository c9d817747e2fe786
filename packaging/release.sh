#!/bin/sh
# release.sh VERSION PREFIX: packs the built program into dist/vnic-VERSION-linux-amd64.tar.gz, and writes its
# SHA-256 beside it. The same commit and Go version give the same bytes on any machine at any time, because all
# files in the archive get the commit's time and the owner root.
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
