// Package machine boots the guests of a lab under QEMU: it fetches QEMU and a kernel, builds the
// guests' images, configures each machine's NICs and GPUs, and reports why a guest has ended:
// because of QEMU, the guest or its agent.
//
// One Images value boots any number of guests. The caller of Boot closes the Guest before
// the lab. Guest.Gone returns why a guest has ended, which explains errors that follow from it;
// Close then does not return the same error again.
package machine
