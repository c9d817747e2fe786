package peer

import (
	"fmt"
	"log/slog"
	"net"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/scm"
)

// ShareFlags are the QEMU flags that share the guest's memory; SIZE stands for its size.
const ShareFlags = "-object memory-backend-memfd,id=ram,size=SIZE,share=on -machine memory-backend=ram"

// ShareMore is the advice about memory that is not shared.
const ShareMore = "start QEMU with " + ShareFlags + "; each further memory backend, one that is added later too, " +
	"needs share=on"

// WatchMemory makes the space check, until Unwatch, whether the process at the other end of sock has mapped a file
// privately: memory of such a file is not accessible (dma.Space.SetPeer). WatchMemory logs at most MaxRefusalLogs such
// files. If the process is unknown, there are no checks.
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

// Unwatch ends WatchMemory.
func Unwatch(space *dma.Space) { space.SetPeer(0, nil) }
