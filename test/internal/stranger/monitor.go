package stranger

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
)

func (c *Config) monitor() string { return filepath.Join(c.Dir, "monitor-"+c.Name) }

// QMP connects to the guest's QEMU, sends a command with args (nil: none), and waits for the reply. If the reply is an
// error, QMP returns the error (QEMU docs/interop/qmp-spec.rst).
func (g *Guest) QMP(ctx context.Context, command string, args any) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", g.monitor)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	type request struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
	}
	in, out := json.NewDecoder(c), json.NewEncoder(c)
	for _, r := range []request{{"qmp_capabilities", nil}, {command, args}} {
		if err := out.Encode(r); err != nil {
			return fmt.Errorf("QMP %s: %w", r.Execute, err)
		}
		var reply struct {
			Return json.RawMessage // stays nil if the message is the greeting or an event
			Error  *struct{ Desc string }
		}
		for reply.Return == nil {
			if err := in.Decode(&reply); err != nil {
				return fmt.Errorf("QMP %s: %w", r.Execute, err)
			}
			if reply.Error != nil {
				return fmt.Errorf("QMP %s: %s", r.Execute, reply.Error.Desc)
			}
		}
	}
	return nil
}
