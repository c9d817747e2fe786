package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"slices"
	"strings"

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

// unplug is the one command that has an argument: a device of those that the process has named so.
const (
	unplug       = "device_del"
	devicePrefix = "dev-"
)

// unplugArgument is that of unplug.
type unplugArgument struct {
	ID string `json:"id"`
}

// relayCommands has a process say those commands to a monitor, without arguments but unplug's, and hear all that it
// says (QEMU docs/interop/qmp-spec.rst). Anything else is left out.
func relayCommands(monitor, process net.Conn, allowed []string) {
	go func() {
		defer monitor.Close()
		lines := bufio.NewScanner(process)
		lines.Buffer(nil, maxCommand)
		for lines.Scan() {
			var c struct { // made anew: what is in the line besides does not go on
				Execute string          `json:"execute"`
				ID      uint64          `json:"id"`
				Args    *unplugArgument `json:"arguments,omitempty"`
			}
			if json.Unmarshal(lines.Bytes(), &c) != nil || !slices.Contains(allowed, c.Execute) {
				continue
			}
			if c.Execute != unplug {
				c.Args = nil
			} else if c.Args == nil || !strings.HasPrefix(c.Args.ID, devicePrefix) {
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
