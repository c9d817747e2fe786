// Package gpumodule builds vnicgpu.ko, the driver of guests' GPUs (guest-images/vnicgpu), for the kernel that guests
// boot, and keeps it in the cache.
//
// Headers are the user's (Options.Headers, or what the kernel's modules directory links to), else those that Debian has
// of the kernel's release. Compiler and make are this machine's, else Debian's. What is fetched is a bundle of package
// assets; its programs run by the loader and libraries that come with them. No root is needed.
//
// A module's file has the kernel's release in its name, and a hash of what decides what it is: the source, the build of
// the kernel, the user's headers, and how it is built. The compiler is not part of it. A file appears by one rename and
// is never changed. The log of a build that failed lies beside it until one succeeds.
//
// The package boots nothing, knows no CLI and prints nothing. A build takes a minute at most on a slow machine, and is
// ended after ten.
package gpumodule
