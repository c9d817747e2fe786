package peer

import (
	"fmt"
	"log/slog"
	"net"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/scm"
)

// ShareFlags are what makes a QEMU share its guest's memory.
const ShareFlags = "-object memory-backend-memfd,id=ram,size=SIZE,share=on -machine memory-backend=ram"

// ShareMore is what to do about memory that is not shared, and may be another than the guest's first.
const ShareMore = "start QEMU with " + ShareFlags + "; each further memory backend, one that is added later too, " +
	"needs share=on"

// WatchMemory has a space look how the process at the other end of sock has files mapped that it shares. A file that is
// mapped privately makes a line, MaxRefusalLogs of them do at the most. It ends with Unwatch.
func WatchMemory(space *dma.Space, sock *net.UnixConn, log *slog.Logger) {
	pid := 0
	if c, err := scm.Peer(sock); err == nil {
		pid = int(c.Pid)
	}
	lines := 0
	space.SetPeer(pid, func(m dma.Map, file string) {
		if lines++; lines > MaxRefusalLogs {
			return
		}
		log.Error("memory of the guest is not shared: nothing is sent from there, and nothing received there",
			"address", fmt.Sprintf("%#x", m.IOVA), "size", fmt.Sprintf("%#x", m.Size), "file", file, "process", pid,
			"hint", ShareMore)
	})
}

// Unwatch ends what WatchMemory began.
func Unwatch(space *dma.Space) { space.SetPeer(0, nil) }
