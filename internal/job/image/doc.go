// Package image is `vnic image`: it writes the files that vnic's guests consist of, for a QEMU or a
// guest of the user's own. Build writes a directory with kernel and initrd, Export the guests'
// tools.
//
// A file or directory gets its name when it is complete. Until then it has a temporary name in the
// same directory. If a process is killed before, the next process that writes the same name removes
// the temporary files. A name that exists is an error; with Force, Build and Export replace what they
// may have written, and nothing else.
package image
