// Package image is `vnic image`: it writes the files of vnic's guests, for a QEMU or a guest of the user's
// own. Build writes a directory with kernel and initrd, Export the guests' tools.
//
// A file or directory gets its name when it is complete; until then it is, or lies in, a directory with a temporary
// name beside it. A name that exists is an error without Force. (Export to stdout makes no file.)
package image
