package stranger

import (
	"context"
	"fmt"
	"strings"

	"vnic.dev/vnic/internal/agent"
)

// End is one end of a transfer: a guest that has the program /bin/devmem, and its NIC.
type End struct {
	*Guest
	Device string // the NIC, as devmem's option -f takes it: a PCI address, virtio, or a network interface
	Addr   string // IP address of the NIC
}

// Send sends bytes from GPU to GPU by the guests' devmem, which checks their pattern. If any of them comes in host
// memory, Send returns an error.
func Send(ctx context.Context, from, to End, bytes int) error {
	const port, pattern = "5201", "7"
	got := make(chan error, 1)
	var r agent.ExecResult
	go func() {
		got <- to.Run(ctx, &r, []string{"/bin/devmem", "recv", "-L", "-f", to.Device, "-s", to.Addr, "-p", port,
			"-v", pattern})
	}()
	var s agent.ExecResult
	err := from.Run(ctx, &s, []string{"/bin/devmem", "send", "-c", from.Addr, "-b", fmt.Sprint(bytes), "-f", from.Device,
		"-s", to.Addr, "-p", port, "-v", pattern}) // the sender tries again until the receiver listens
	if err != nil {
		return err
	}
	if s.Status != 0 {
		return fmt.Errorf("send: %+v", s)
	}
	if err := <-got; err != nil {
		return err
	}
	if r.Status != 0 || !strings.Contains(r.Stdout, "Validated buffer") ||
		!strings.Contains(r.Stderr, fmt.Sprintf("total_received=%d\n", bytes)) ||
		!strings.Contains(r.Stderr, "linear_received=0\n") {
		return fmt.Errorf("recv: %+v", r)
	}
	return nil
}
