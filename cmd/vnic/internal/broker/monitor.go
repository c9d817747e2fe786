package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"slices"

	"vnic.dev/vnic/internal/scm"
)

// maxCommand bounds a line to a monitor.
const maxCommand = 4 << 10

// monitor gives the process a socket instead of one that leads to a QEMU's monitor, which is the
// broker's from then on, fd.
func (s *server) monitor(ctx context.Context, fd int, r *reply) {
	c, err := fileConn(fd)
	if err != nil {
		r.errno = errnoOf(err)
		return
	}
	ours, theirs, err := scm.Pair()
	if err == nil {
		r.fd, err = dup(theirs)
		_ = theirs.Close()
	}
	if r.errno = errnoOf(err); err != nil {
		_ = c.Close()
		return
	}
	context.AfterFunc(ctx, func() {
		_ = c.Close()
		_ = ours.Close()
	})
	s.wg.Go(func() { relayCommands(c, ours, s.config.Monitor) })
}

// relayCommands has a process say those commands, without arguments, to a monitor, and hear all that it
// says (QEMU docs/interop/qmp-spec.rst). Anything else is left out.
func relayCommands(monitor, process net.Conn, allowed []string) {
	go func() {
		defer monitor.Close()
		lines := bufio.NewScanner(process)
		lines.Buffer(nil, maxCommand)
		for lines.Scan() {
			var c struct { // made anew: what is in the line besides does not go on
				Execute string `json:"execute"`
				ID      uint64 `json:"id"`
			}
			if json.Unmarshal(lines.Bytes(), &c) != nil || !slices.Contains(allowed, c.Execute) {
				continue
			}
			b, err := json.Marshal(c)
			if err != nil {
				return
			}
			if _, err := monitor.Write(append(b, '\n')); err != nil {
				return
			}
		}
	}()
	_, _ = io.Copy(struct{ io.Writer }{process}, struct{ io.Reader }{monitor})
	_ = process.Close()
}
