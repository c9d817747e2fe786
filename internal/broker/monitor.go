package broker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/scm"
)

// maxCommand bounds a line with a command and its newline, in bytes. A longer line ends the relay.
const maxCommand = 4 << 10

func (s *server) monitor(ctx context.Context, c *call, _ none) (none, error) {
	qemu, err := scm.Conn[net.Conn](c.fds.Take(0))
	if err != nil {
		return none{}, err
	}
	ours, theirs, err := scm.Pair()
	if err != nil {
		return none{}, errors.Join(err, qemu.Close())
	}
	c.out = theirs
	context.AfterFunc(ctx, func() {
		_ = qemu.Close()
		_ = ours.Close()
	})
	s.wg.Go(func() { relayCommands(qemu, ours, s.config.Monitor) })
	return none{}, nil
}

// unplug is the only command that the relay passes with an argument: the name of a device, which begins with
// devicePrefix.
const (
	unplug       = "device_del"
	devicePrefix = "dev-"
)

// relayCommands passes the process's commands to a QEMU's monitor if allowed lists them (QEMU
// docs/interop/qmp-spec.rst), and drops others. It passes all bytes from the monitor to the process. When either
// connection ends, it closes both; it returns when it has closed process.
func relayCommands(monitor, process net.Conn, allowed []string) {
	go func() {
		defer monitor.Close()
		lines := bufio.NewScanner(process)
		lines.Buffer(nil, maxCommand)
		for lines.Scan() {
			var c struct { // encoded again below, without other fields
				Execute string `json:"execute"`
				ID      uint64 `json:"id"`
				Args    *struct {
					ID string `json:"id"`
				} `json:"arguments,omitempty"`
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
