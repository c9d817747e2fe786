package broker

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: sandbox: The broker says how a process has a file mapped.
func TestBrokerLooksAtMappings(t *testing.T) {
	testkit.LeavesNothing(t)
	k := both(t, Config{Mode: On})
	f := testkit.Memfd(t, 4096)
	var st unix.Stat_t
	testkit.OK(t, unix.Fstat(int(f.Fd()), &st))
	for flags, want := range map[int]dma.Sharing{unix.MAP_PRIVATE: dma.SharingOff, unix.MAP_SHARED: dma.SharingOn} {
		mem := testkit.Must(unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, flags))(t)
		for what, k := range map[string]*Client{"a broker": k, "no broker": nil} {
			testkit.Equal(t, what, k.Sharing(os.Getpid(), uint64(st.Dev), st.Ino), want)
			testkit.Equal(t, what+", of no process", k.Sharing(0, uint64(st.Dev), st.Ino), dma.SharingUnknown)
			testkit.Equal(t, what+", of another file", k.Sharing(os.Getpid(), uint64(st.Dev), st.Ino+1<<40), dma.SharingUnknown)
		}
		testkit.OK(t, unix.Munmap(mem))
	}
}
