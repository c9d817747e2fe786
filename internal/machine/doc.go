// Package machine boots the guests of a lab under QEMU: it fetches QEMU and a kernel, builds what
// guests boot from, gives each machine its NICs and GPUs, and says what ended one: QEMU, the guest
// or its agent.
//
// Images are made once and boot any number of guests. The caller of Boot closes the Guest, before
// the lab; a guest that is gone explains the errors that came of it (Guest.Gone), and its Close
// then does not tell of it again.
package machine
