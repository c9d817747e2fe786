// Package confine removes rights from the running process permanently, from all its threads: files by
// Landlock (go-landlock), system calls by a seccomp filter (seccomp(2)) that is made from a list.
//
// The remaining rights are data: lists of [Call] and [Path]. Outside of a trial run, a call that the list does not
// allow fails with EPERM (one in [Absent]: ENOSYS), and an open that Landlock refuses with EACCES; nothing is killed. A
// filter can check arguments that are numbers, so a list can allow mmap without PROT_EXEC, and sendto without an
// address.
//
// The kernel reports system calls that the list does not allow, but for those in [Absent], to the holder of a listener.
// The holder must be another process: the confined process could otherwise allow itself everything. The holder answers
// with EPERM, or, in a trial run, lets the calls happen (see [Watch]). [Files] has no listener and no trial mode: in a
// trial run the holder can check the path of each openat ([Trial], [Refusal.Opens]).
//
// A process confined to [GoRuntime] and [Sockets] cannot signal others. Landlock's scope of signals
// is not used: it would also block the signal with which the kernel ends the process's children
// (internal/proc).
//
// A system call that is listed without conditions costs little, because the kernel keeps one bit for it
// (Linux 5.11 and later); for others it runs the filter, some tens of BPF instructions.
//
// The filter supports amd64 and arm64.
package confine
