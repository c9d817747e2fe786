// Package confine takes rights from the running process for good, from all its threads: files by
// Landlock (go-landlock), system calls by a seccomp filter (seccomp(2)), a program of classic BPF that
// is made from a list. It knows nothing of vnic.
//
// What a process may still do is data: Calls and Paths, each with the reason why it is needed.
// Whatever is not listed fails with EPERM (a path that Landlock refuses: EACCES); nothing is
// killed. Arguments can be looked at as far as they are numbers, so a list can have mmap without
// PROT_EXEC, and sendto without an address.
//
// A system call that is refused is told of to the holder of a Listener, which must be another
// process: the confined one could else permit everything to itself. The holder counts, and answers
// with EPERM, or, in a trial run, lets it happen. Without a holder (it has ended, or the kernel
// knows no listeners) refused calls fail all the same, with ENOSYS or EPERM. Landlock tells nobody
// of what it refuses, and cannot be tried: in a trial run the holder looks at what each openat leads
// to (Trial, Refusal.Opens), and says what Landlock would refuse.
//
// A confined process cannot signal others; those of its children that are to end with it (internal/proc)
// do, as Landlock's scope of signals, which would hold for that signal, too, is not used.
//
// Costs: a system call that is listed without conditions costs some tens of ns, for entering it by the
// way that looks for filters, as the kernel keeps one bit for it (Linux 5.11); others cost the filter,
// some tens of instructions of BPF (cmd/vnic/internal/broker, BenchmarkCall; docs/threat-model.md). A
// refused one costs two switches to the holder and back, and the holder one count: it keeps nothing
// for each, and how many lines it writes is up to it.
//
// The filter is built for amd64 and arm64.
package confine
