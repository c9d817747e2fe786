// Package vhostuser implements the vhost-user protocol (QEMU docs/interop/vhost-user.rst), both ends.
package vhostuser
