// Package image is `vnic image`: what guests of vnic consist of, as files for a QEMU or a guest of
// the user's own. Build writes a directory with kernel and initrd, Export the tools.
//
// A file or directory gets its name when it is complete. Until then it has a temporary name in the
// same directory; what a killed process leaves under such a name, the next one removes. A file that
// exists is an error, unless the caller asks to replace it.
package image
