package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/stack"
)

// passt's default MTU, and the MSS that it announces with that and pages of 4 KiB
const (
	passtMTU = 65520
	passtMSS = 60 << 10
)

var (
	passtGuest = netip.MustParsePrefix("10.0.2.15/24")
	passtHost  = netip.MustParseAddr("10.0.2.2") // passt maps it to this machine's loopback
	passtMAC   = net.HardwareAddr{0x52, 0x54, 0, 0x12, 0x34, 0x56}
)

// passtOptions are the options with which the stack was fastest of those tried with passt: passt has no segmentation
// offload, and a larger send buffer was no faster.
var passtOptions = stack.Options{Addresses: []netip.Prefix{passtGuest}, NoGSO: true, RACK: true,
	SendBuffer: 1 << 20}

func findPasst() string {
	path, err := exec.LookPath("passt")
	if err != nil {
		return "not installed (Debian: passt)"
	}
	help, err := exec.Command(path, "--help").CombinedOutput()
	if err != nil && len(help) == 0 {
		return fmt.Sprintf("%s does not run: %v", path, err)
	}
	if !bytes.Contains(help, []byte("--vhost-user")) {
		return path + " has no vhost-user: it is older than Debian 13's"
	}
	return ""
}

// throughPasst connects a guest's stack through passt to host, a listener of this machine. It uses the same driver and
// stack as toHost does with vnic's backend, with other options.
func throughPasst(ctx context.Context, host *net.TCPListener, r *rig) (*ends, error) {
	backend, frontend, err := scm.Pair()
	if err != nil {
		return nil, err
	}
	end, err := startPasst(backend)
	if err != nil {
		return nil, errors.Join(err, frontend.Close())
	}
	r.undo.Add(end)
	nic, err := driver.Attach(driver.FrontendOptions{Conn: frontend, MAC: passtMAC, MTU: passtMTU,
		Options: driver.Options{QueuePairs: 1, WholeFrames: true}})
	if err != nil {
		return nil, fmt.Errorf("passt: %w", err)
	}
	s, err := stack.New(nic, nil, passtOptions)
	if err != nil {
		return nil, errors.Join(err, nic.Close())
	}
	r.undo.Add(s.Close)
	e, err := meet(ctx, host, dialFrom(s, passtHost, host), r)
	if err != nil {
		return nil, fmt.Errorf("through passt: %w", err)
	}
	e.near = inSegments{e.near}
	return e, nil
}

// inSegments splits writes into pieces of at most passtMSS bytes.
type inSegments struct{ net.Conn }

func (s inSegments) Write(b []byte) (n int, err error) {
	for err == nil && n < len(b) {
		var k int
		k, err = s.Conn.Write(b[n:min(len(b), n+passtMSS)])
		n += k
	}
	return n, err
}

// startPasst starts passt with a copy of backend as its vhost-user connection, and closes backend, also after an error.
// end kills passt; it returns an error if passt had exited before with a status other than 0.
func startPasst(backend *net.UnixConn) (end func() error, err error) {
	defer backend.Close()
	file, err := backend.File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var log bytes.Buffer
	cmd := exec.Command("passt", "--foreground", "--quiet", "--vhost-user", "--fd", "3", "--ipv4-only",
		"--address", passtGuest.Addr().String(), "--netmask", "24", "--gateway", passtHost.String(),
		"--map-host-loopback", passtHost.String(), "--dns", "none", "--tcp-ports", "none", "--udp-ports", "none")
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stdout, cmd.Stderr = &log, &log
	child, err := proc.StartChild(cmd)
	if err != nil {
		return nil, err
	}
	return func() error {
		child.End(0)
		var exit *exec.ExitError
		if err := child.Err(); err != nil && !(errors.As(err, &exit) && exit.ExitCode() < 0) {
			return fmt.Errorf("passt: %w: %s", err, lastLines(log.Bytes()))
		}
		return nil
	}, nil
}
