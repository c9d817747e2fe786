// Package confine removes rights from the running process permanently, from all its threads: files by
// Landlock (go-landlock), system calls by a seccomp filter (seccomp(2)) that is made from a list.
//
// The remaining rights are data: Calls and Paths. What is not listed fails with EPERM (a path that Landlock
// refuses: EACCES; a call in [Absent]: ENOSYS); nothing is killed. A filter can check arguments that are
// numbers, so a list can allow mmap without PROT_EXEC, and sendto without an address.
//
// The kernel reports refused system calls to the holder of a listener, which must be another process: the
// confined process could otherwise allow itself everything. The holder answers with EPERM, or, in a trial
// run, lets them happen. Landlock has no listener and no trial mode: in a trial run the holder checks the
// path of each openat ([Refusal.Opens]).
//
// A process confined to [GoRuntime] and [Sockets] cannot signal others. Landlock's scope of signals
// is not used: it would also block the signal with which the kernel ends the process's children
// (internal/proc).
//
// A system call that is listed without conditions costs little, because the kernel keeps one bit for it
// (Linux 5.11); others cost the filter, some tens of BPF instructions.
//
// The filter supports amd64 and arm64.
package confine
