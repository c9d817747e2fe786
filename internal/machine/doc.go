// Package machine boots the guests of a lab under QEMU: it fetches QEMU and a kernel, builds images,
// configures NICs and GPUs, and reports why a guest has ended.
//
// One Images value boots any number of guests. The caller of Boot closes the Guest before the lab.
package machine
