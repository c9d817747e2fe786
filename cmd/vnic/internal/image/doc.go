// Package image is `vnic image`: what guests of vnic consist of, as files for a QEMU or a guest of
// the user's own. Build writes a directory with kernel and initrd, Export the tools.
//
// A file or directory is there when it is whole: until then it has another name beside its own, and
// what a killed process leaves under that the next one removes. What is there already is refused,
// unless it is to be replaced.
package image
