// Package gpumodule builds vnicgpu.ko, the driver of guests' GPUs (guest-images/vnicgpu), for the guests'
// kernel, and keeps it in the cache.
//
// The kernel headers are the user's, else Debian's for the kernel's release. Compiler and make are this
// machine's, if they work, else Debian's. The package needs no root.
//
// A module's file name has the kernel's release and a hash of the kernel's banner, the module's source, and three files
// of the user's headers, if they are used; the compiler and Debian's headers are not in the hash. The file appears by
// one rename, and its content does not change. The log of a failed build has the same name with .log in place of .ko.
//
// The package boots nothing and prints nothing. The programs make and strip are ended after ten minutes (buildLimit).
package gpumodule
