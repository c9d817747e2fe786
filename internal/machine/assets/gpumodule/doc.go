// Package gpumodule builds vnicgpu.ko, the driver of guests' GPUs (guest-images/vnicgpu), for the guests'
// kernel, and keeps it in the cache.
//
// The kernel headers are the user's, else Debian's for the kernel's release. Compiler and make are this
// machine's, else Debian's. The package needs no root.
//
// A module's file name has the kernel's release and a hash of the build's inputs, but for the compiler and
// Debian's headers. The file appears by one rename and does not change. The log of a failed build lies beside it.
//
// The package boots nothing and prints nothing. A build ends after ten minutes at most.
package gpumodule
