// Package gpumodule builds vnicgpu.ko, the driver of guests' GPUs (guest-images/vnicgpu), for the
// guests' kernel, and keeps it in the cache.
//
// The kernel headers are the user's (Options.Headers, or the tree to which the kernel's modules
// directory links), else Debian's for the kernel's release. Compiler and make are this machine's, else
// Debian's. Fetched packages are bundles of package assets; their programs run with the loader and
// libraries of the bundle. The package needs no root.
//
// A module's file name has the kernel's release and a hash of the build's inputs: the source, the
// kernel's build, the user's headers, and the build commands, but not the compiler. The file
// appears by one rename and does not change. The log of a failed build lies beside it until a build
// succeeds.
//
// The package boots nothing, has no CLI and prints nothing. A build takes at most a minute on a
// slow machine, and Make ends it after ten.
package gpumodule
