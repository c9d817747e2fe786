package serve

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/gpufd"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Options are the flags of `vnic serve`.
type Options struct {
	session.Common // Accel: the accelerator that the users' QEMUs likely use

	// Lab is a lab file, nil: none. Its guests take the place of NIC, GPUMemory, Impair and NoP2P (Take). Check still uses
	// NIC.Model, which Take sets.
	Lab *labfile.Lab

	NIC       lab.NIC        // of each port
	GPUMemory uint64         // of each port, in bytes; 0: no GPUs
	Impair    lab.Impairment // for all links
	NoP2P     bool           // NICs do not reach GPU memory
	Paths     []string       // paths of sockets, one for each port; empty with FDs
	FDs       []int          // open sockets, instead of Paths
	Client    bool           // QEMU listens at Paths; false: vnic does
	Group     string         // a group whose members may connect, too; "": none
	AllowMAC  lab.AllowedMACs
	Flows     int      // lab.Options.Flows
	Storm     uint     // lab.Options.Storm
	Memory    uint64   // lab.Options.FrontendMemory
	Boot      []string // QEMU's arguments that boot an image; nil: none
	Poll      int      // threads that poll the NICs' rings; 0: none
	Hot       bool     // these threads never sleep

	lab.GatewayFlags

	Ready func(*Report) error                    // called when QEMUs may connect; an error ends Do
	Event func(port, format string, args ...any) // port: name of a port, socket or removed device, "GPU" or "lab"

	silence, takeover time.Duration // 0: limits.Connected and limits.Takeover; tests set others
}

// BrokerConfig returns the broker's configuration for these options.
func (o *Options) BrokerConfig(mode string) (broker.Config, error) {
	g, err := o.gatewayOptions()
	c := broker.Config{Mode: mode, NAT: g.NAT, Policy: g.Policy, Forwards: g.Forwards, Memory: lab.GPUFilePrefix}
	if o.Client {
		c.Connect = o.Paths
	}
	return c, err
}

const maxPath = gpufd.MaxPath

// Paths returns the paths of the sockets of n ports: given, which must have n paths, or, if given is one path with %d,
// n copies of it with the ports' numbers for %d. n 0: as many ports as given has paths.
func Paths(given []string, n int) ([]string, error) {
	if len(given) == 1 && strings.Contains(given[0], "%d") {
		var paths []string
		for i := range max(n, 1) {
			paths = append(paths, strings.Replace(given[0], "%d", strconv.Itoa(i), 1))
		}
		return paths, nil
	}
	if n > 0 && n != len(given) {
		return nil,
			fmt.Errorf("--ports %d, and %d sockets: give --socket-path %d times, or once with %%d in it, for the port's number",
				n, len(given), n)
	}
	return given, nil
}

// Take makes o serve the NICs of a lab file: at sockets with the only path in given, which has %s in place of the NIC's
// name. Set FDs and Group before; NIC.Model should be empty, and is then set to a vfio-user model, if a NIC has one, or
// to the first NIC's.
func (o *Options) Take(l *labfile.Lab, given []string) error {
	if len(given) != 1 || !strings.Contains(given[0], "%s") {
		return errors.New("--lab: give --socket-path once with %s in it, for the name of each NIC, as a.nic0")
	}
	if len(o.FDs) > 0 {
		return errors.New("--lab and --fd: the NICs of a lab file have sockets with names: --socket-path")
	}
	o.Lab, o.GPUMemory = l, 0
	if l.Gateway != "" {
		o.Gateway = l.Gateway
	}
	for _, g := range l.Guests {
		if o.Group != "" && len(g.GPUs) > 0 {
			return errors.New("--lab and --socket-group: QEMUs of other users do not get the memory of a lab file's GPUs")
		}
		for _, n := range g.NICs {
			o.Paths = append(o.Paths, strings.Replace(given[0], "%s", n.Name, 1))
			if m, _ := lab.LookupModel(n.Model); o.NIC.Model == "" || m.VFIOUser {
				o.NIC.Model = n.Model // a vfio-user model, if there is one, decides which flags are allowed
			}
		}
	}
	return nil
}

// Inherited returns the sockets that systemd has passed to this process (sd_listen_fds(3)).
func Inherited() (fds []int) {
	if pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")); err != nil || pid != os.Getpid() {
		return nil
	}
	const first = 3
	n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	for i := range min(n, lab.MaxPorts+1) { // one more than Check accepts
		fds = append(fds, first+i)
	}
	return fds
}

// CheckInherited returns an error for a descriptor with close-on-exec, which this process has opened itself.
func CheckInherited(fds []int) error {
	for _, fd := range fds {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && flags&unix.FD_CLOEXEC != 0 {
			return fmt.Errorf("--fd %d: not a descriptor that vnic was started with", fd)
		}
	}
	return nil
}

// Check returns an error for wrong options.
func (o *Options) Check() error {
	seen := map[string]bool{}
	for _, p := range o.Paths {
		abs, err := filepath.Abs(p)
		switch {
		case err != nil:
			return err
		case p == "":
			return errors.New("--socket-path: no name")
		case len(p) > maxPath:
			return fmt.Errorf("--socket-path %s: %d bytes, a socket's name has %d at most", p, len(p), maxPath)
		case o.sharesGPUs() && len(p+gpufd.Suffix) > maxPath:
			return fmt.Errorf("--socket-path %s: with %s at its end, as its GPU's socket has, it has %d bytes, and a socket's "+
				"name has %d at most", p, gpufd.Suffix, len(p+gpufd.Suffix), maxPath)
		case seen[abs]:
			return fmt.Errorf("--socket-path %s: twice", p)
		}
		seen[abs] = true
	}
	for _, p := range o.Paths {
		abs, err := filepath.Abs(p)
		if port, ok := strings.CutSuffix(abs, gpufd.Suffix); err == nil && ok && o.sharesGPUs() && seen[port] {
			return fmt.Errorf("--socket-path %s: with --socket-group this is the socket of another port's GPU", p)
		}
	}
	fds := map[int]bool{}
	for _, fd := range o.FDs {
		if fd < 0 || fds[fd] {
			return fmt.Errorf("--fd %d: not a descriptor, or twice", fd)
		}
		fds[fd] = true
	}
	switch {
	case len(o.Paths) == 0 && len(o.FDs) == 0:
		return errors.New("no socket: give --socket-path PATH, or --fd N")
	case len(o.Paths) > 0 && len(o.FDs) > 0:
		return errors.New("--socket-path and --fd: one or the other")
	case o.Client && len(o.FDs) > 0:
		return errors.New("--client and --fd: an open socket is what it is")
	}
	if o.Group != "" {
		switch {
		case o.Client:
			return errors.New("--socket-group and --client: the socket is QEMU's")
		case len(o.FDs) > 0:
			return errors.New("--socket-group and --fd: an open socket has its group and mode already")
		}
		if _, err := groupID(o.Group); err != nil {
			return fmt.Errorf("--socket-group %s: %w", o.Group, err)
		}
	}
	if m, _ := lab.LookupModel(o.NIC.Model); o.Client && m.VFIOUser {
		return fmt.Errorf("--client and --nic %s: QEMU listens at no vfio-user socket, it only connects", m.Name)
	}
	if err := o.checkPoll(runtime.NumCPU()); err != nil {
		return err
	}
	if _, err := o.gateway(); err != nil {
		return err
	}
	d := o.describe()
	return d.Check()
}

// checkPoll checks Poll and Hot for a machine with this many processors.
func (o *Options) checkPoll(processors int) error {
	m, _ := lab.LookupModel(o.NIC.Model)
	switch {
	case o.Poll < 0:
		return fmt.Errorf("--poll %d: a number of threads, or 0 for none", o.Poll)
	case o.Hot && o.Poll == 0:
		return errors.New("--hot: only threads of --poll N never sleep")
	case o.Poll > 0 && m.VFIOUser:
		return fmt.Errorf("--poll and --nic %s: its driver says by a doorbell, not in memory, that there are frames; "+
			"only virtio's rings can be polled", m.Name)
	case o.Poll > processors:
		return fmt.Errorf("--poll %d: each thread takes a processor for itself, and this process may use %d", o.Poll,
			processors)
	}
	return nil
}

// describe returns the description of the lab: the lab file's guests, or one guest for each socket.
func (o *Options) describe() lab.Description {
	if o.Lab != nil {
		d := o.Lab.Complete()
		d.Identify(o.AllowMAC, true)
		for i := range d.Guests {
			n := &d.Guests[i].NICs[0]
			if _, v6 := o.Lab.Given(i, 0); o.onGateway(i) && !v6.IsValid() {
				n.Addr6 = madeUp(n)
			}
		}
		return d
	}
	d := lab.Uniform(len(o.Paths)+len(o.FDs), o.NIC, o.GPUMemory)
	d.Identify(o.AllowMAC, true) // QEMU's mac= may set another MAC
	d.NoP2P = o.NoP2P
	d.Impair(o.Impair)
	if !o.Off() {
		for i := range d.Guests { // the gateway's names need the IPv6 address that a guest's kernel makes
			n := &d.Guests[i].NICs[0]
			n.MAC, n.Addr6 = lab.MAC(i), lab.Addr6(i)
			n.Addr6 = madeUp(n)
		}
	}
	return d
}

// HostPorts is vnic serve's default of --host-ports.
const HostPorts = "none"

func (o *Options) gatewayOptions() (gateway.Options, error) {
	if o.Lab == nil {
		return o.Options(lab.PortName, len(o.Paths)+len(o.FDs), HostPorts)
	}
	g, err := o.Options(lab.GuestName, len(o.Lab.Guests), HostPorts)
	if err != nil || o.Off() {
		return g, err
	}
	for _, f := range g.Forwards {
		for i := range o.Lab.Guests {
			if f.To.Addr() == lab.Addr4(i).Addr() && !o.onGateway(i) {
				return g, fmt.Errorf("--forward: %s has the address that the lab file says, on no network of the gateway's",
					o.Lab.Guests[i].NICs[0].Name)
			}
		}
	}
	g.Hosts = o.hosts()
	return g, nil
}

// madeUp returns the IPv6 address that a guest's kernel may derive from the NIC's MAC and the advertised prefix, by
// EUI-64.
func madeUp(n *lab.NIC) netip.Prefix {
	return netip.PrefixFrom(gateway.EUI64(n.Addr6, n.MAC), n.Addr6.Bits())
}

// onGateway reports whether there is a gateway, and the first NIC of guest i of the lab file is on its IPv4 network.
func (o *Options) onGateway(i int) bool {
	v4, _ := o.Lab.Given(i, 0)
	return !o.Off() && !v4.IsValid()
}

// hosts lists the NICs of a lab file's guests, with their MACs. A guest's first NIC, if it is on the gateway's IPv4
// network, also has a name, an IPv4 address and, unless the file gives it one, an IPv6 address.
func (o *Options) hosts() (list []gateway.Host) {
	d := o.describe()
	for i, g := range d.Guests {
		for j := range g.NICs {
			n := &g.NICs[j]
			if j > 0 || !o.onGateway(i) {
				list = append(list, gateway.Host{MAC: n.MAC})
				continue
			}
			h := gateway.Host{Name: g.Name, MAC: n.MAC, Addr4: n.Addr4.Addr()}
			if _, v6 := o.Lab.Given(i, 0); !v6.IsValid() {
				h.Addr6 = n.Addr6.Addr()
			}
			list = append(list, h)
		}
	}
	return list
}

func (o *Options) gateway() ([]lab.Service, error) {
	g, err := o.gatewayOptions()
	if err != nil || o.Off() {
		return nil, err
	}
	if o.Broker != nil {
		g.Outside = o.Broker
	}
	return []lab.Service{lab.Gateway(g)}, nil
}
