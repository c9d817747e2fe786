package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/version"
)

// GPU is GPU memory shown to the guest: as BAR 2 of an ivshmem-plain device (1af4:1110), or as a
// NUMA node.
type GPU struct {
	File *os.File // shared memory; stays the caller's
	Size uint64   // of a BAR a power of two, of a node a multiple of 2 MiB
	// Node makes it the memory of a NUMA node without CPUs. Guest RAM and all CPUs are node 0 then;
	// the GPUs that are nodes follow, in their order, from 1; with a Tree, its sockets are nodes 0, 1 and
	// so on, and the GPUs follow these.
	Node    bool
	Place   string // its name in Config.Tree
	Hotplug bool   // it can be taken out while the guest runs (UnplugGPU): of one that has a Place and is no Node
}

// Netdev is a network device on a backend in this process (Connected) or elsewhere (Path): a
// virtio-net-pci on a vhost-user backend, or a vfio-user-pci, whose backend is the whole device.
type Netdev struct {
	// Connected is called once, with the connection that QEMU has made, which is then the callee's.
	// It is called from a goroutine of the Machine's and must not wait for the guest.
	Connected func(conn *net.UnixConn)
	Path      string // the backend's socket, to which QEMU connects again whenever it is lost (vfio-user: connects once)
	Listens   bool   // with Path: QEMU listens there, and waits until the backend has connected; vhost-user only
	VFIOUser  bool   // vfio-user-pci: QEMU 10.1 or newer, and nothing of what follows but Place
	Place     string // its name in Config.Tree
	Hotplug   bool   // it can be taken out while the guest runs (UnplugNIC): of one that has a Place

	// Of a virtio-net-pci.
	Queues  int              // queue pairs; 0 = 1
	MAC     net.HardwareAddr // nil = QEMU's
	MTU     int              // host_mtu; 0 = none
	XDP     bool             // the guest's driver may attach XDP programs: nothing is offloaded for it to receive
	Options string           // more options of the device, "packed=on"

	abstract string   // vhost-user: name of our socket in the abstract namespace
	socket   *os.File // vfio-user: our socket, to be inherited
}

// Config describes one machine.
type Config struct {
	Name   string // for logs and errors; "" = "guest"
	QEMU   assets.Binary
	Kernel assets.Kernel
	Initrd []io.Reader // read to their end, one after the other; see guest-images
	Append string      // added to the kernel's command line

	RAMSize uint64 // 0 = 512 MiB
	CPUs    int    // 0 = 1
	Accel   Accel
	Cache   string // where AccelAuto keeps what its probe found; "" = the user's cache
	GPUs    []GPU
	Netdevs []Netdev
	Disks   []Disk
	Tree    *pcie.Tree // that GPUs and Netdevs are in; nil, or at no Place of it: they are on the root complex
	// ForwardsP2P has the guest's kernel take the host bridges for ones that forward requests between their ports: it
	// goes by the CPU, AMD's since Zen (drivers/pci/p2pdma.c, cpu_supports_p2pdma). With KVM the host's CPU decides.
	ForwardsP2P bool
	// IOMMU gives the machine an IOMMU, Intel's (VT-d), and has the kernel translate by it what devices address. Of QEMU's
	// own devices those that do not ask for translation (virtio without iommu_platform) go past it.
	IOMMU bool
	Args  []string // more QEMU arguments, last
	// ResultsPort offers the results channel as a port of a virtio-serial device, too
	// (agent.PortName): much faster than a serial line, for guests whose kernel has a driver for
	// it. The guest picks one (agent.Config.Port).
	ResultsPort bool

	Console   io.Writer     // also gets the guest's console; may be nil
	Silence   time.Duration // of the console, until the guest's init reports; 0 = no limit
	BootLimit time.Duration // until the guest's init reports; 0 = limits.Boot
	TimeLimit time.Duration // whole run; 0 = limits.Machine
	Log       *slog.Logger  // may be nil

	// Started, if it is not nil, is called when QEMU's process is there, before anything that it says is
	// read and any connection of its devices is taken: it may wait, and take rights from this process.
	Started Started

	key probeKey // of the probe that chose the accelerator
}

// Started is called with QEMU's process and its monitor (QMP), by which a QEMU can be had to open any
// file. For a process that is to have neither rights any more, what it gives takes their place: signal
// sends signals to QEMU; and monitor, which is the caller's, may take the commands of Commands only.
// Without an error neither is nil.
type Started func(ctx context.Context, pid int, monitor net.Conn) (signal func(syscall.Signal) error,
	instead net.Conn, err error)

// Commands are all that a Machine says to QEMU's monitor: the keys "execute" and "id", and of device_del the argument
// "id", which begins with DevicePrefix.
var Commands = []string{commandCapabilities, commandStatus, commandQuit, commandUnplug}

// Machine is a running QEMU. Its methods may be called from any goroutine.
type Machine struct {
	name   string
	qemu   string // in words
	kernel assets.Kernel
	accel  Accel
	log    *slog.Logger
	child  *proc.Child
	ram    []*os.File
	// of guest memory
	physical []Extent
	con      *console
	conIn    net.Conn
	conOK    chan struct{} // closed when the console has been read to its end
	qmp      *qmp
	agent    *agent.Client
	net      []*backendSocket

	unplug  [2][]string // devices of NICs and GPUs that can be taken out; "": this one cannot
	unplugs unplugs

	ask    chan struct{} // closed by Close
	askOne sync.Once
	up     chan struct{} // closed when init has reported
	done   chan struct{} // closed when all is over
	err    error         // set before done is closed
	stderr agent.Tail    // QEMU's; read after the child's end

	record func(*RunError) *record // of one that KVM has stopped; nil: KVM was asked for

	// of watch
	shutdown string // reason of the SHUTDOWN event
	cause    error  // why we ended it
	detail   string
}

// Start starts QEMU and returns once the guest's init has reported on the results channel. When ctx
// ends, then or later, the machine is ended. The caller calls Close, whatever else happens.
func Start(ctx context.Context, c Config) (*Machine, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	accel, err := c.choose(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	c.BootLimit = cmp.Or(c.BootLimit, limits.Boot.Here()) // by what the probe found
	c.TimeLimit = cmp.Or(c.TimeLimit, limits.Machine.Here())
	if c.Accel == AccelAuto && accel == AccelKVM && c.BootLimit <= limits.Boot.Here() {
		c.Silence = cmp.Or(c.Silence, limits.GuestSilence.Here())
	}
	m, err := launch(ctx, &c, accel)
	if err != nil {
		return nil, MemoryError(c.Name, fmt.Errorf("%s: %w", c.Name, err))
	}
	begin := time.Now()
	if c.Accel == AccelAuto {
		m.record = func(e *RunError) *record { return c.record(e, begin) }
	}
	go m.watch(ctx, c.Silence, c.BootLimit, c.TimeLimit)
	select {
	case <-m.up:
		if c.BootLimit <= limits.Boot.Here() { // else who boots it may have stopped it for long
			limits.Booted(time.Since(begin))
		}
		return m, nil
	case <-m.done:
	}
	m.closeRAM()
	if m.err == nil { // booted, and off again before anybody looked
		return nil, &RunError{Name: m.name, Err: ErrPowerOff, Console: proc.LastLines(m.Console(), consoleLines)}
	}
	return nil, m.err
}

// choose says how the guest is run.
func (c *Config) choose(ctx context.Context) (Accel, error) {
	if c.Accel == AccelTCG {
		return AccelTCG, nil
	}
	var err error
	if c.Cache, err = assets.CacheDir(assets.Options{CacheDir: c.Cache}); err != nil {
		return "", err
	}
	c.key = keyOf(c.QEMU, c.Kernel) // later this process may read nothing
	accel, why, err := ChooseAccel(ctx, &assets.Resolved{Cache: c.Cache, QEMU: c.QEMU, Kernel: c.Kernel}, c.Accel)
	c.Log.Info("accelerator chosen", "machine", c.Name, "accel", accel, "why", why)
	return accel, err
}

// launch makes what QEMU inherits, starts it and the readers of its sockets.
func launch(ctx context.Context, c *Config, accel Accel) (_ *Machine, err error) {
	m := &Machine{
		name: c.Name, qemu: strings.TrimSpace("QEMU " + c.QEMU.Version), kernel: c.Kernel, accel: accel,
		log:   c.Log,
		con:   newConsole(c.Console),
		conOK: make(chan struct{}), ask: make(chan struct{}), up: make(chan struct{}), done: make(chan struct{}),
		stderr: agent.Tail{Max: 8 << 10},
	}
	m.unplug = c.devicesOut()
	var in inherited
	host := map[string]net.Conn{} // our ends
	defer func() {
		_ = in.initrd.Close()
		for _, ch := range in.channels {
			_ = ch.file.Close()
		}
		if err != nil {
			for _, c := range host {
				_ = c.Close()
			}
			m.closeNet()
			m.closeRAM()
		}
	}()
	for _, size := range c.ramSizes() {
		f, err := NewMemory("vnic-ram", size)
		if err != nil {
			return nil, err
		}
		m.ram = append(m.ram, f)
	}
	in.ram, m.physical = m.ram, physical(c.nodeFiles(m.ram))
	if in.initrd, err = gather(c.Initrd); err != nil {
		return nil, fmt.Errorf("initramfs: %w", err)
	}
	names := []string{consoleChannel, resultsChannel, qmpChannel}
	if c.ResultsPort {
		names = append(names, portChannel)
	}
	for _, name := range names {
		ours, theirs, err := socketPair()
		if err != nil {
			return nil, err
		}
		host[name], in.channels = ours, append(in.channels, channel{name, theirs})
	}
	for i := range c.Netdevs {
		if n := &c.Netdevs[i]; n.Connected != nil {
			b, err := newBackendSocket(n.Connected, n.VFIOUser)
			if err != nil {
				return nil, err
			}
			m.net = append(m.net, b)
			n.abstract, n.socket = b.name, b.file
		}
	}
	in.sandbox = hasSandbox(ctx, c.QEMU)
	args, fds := arguments(c, accel, in)
	cmd := exec.Command(c.QEMU.Args[0], append(c.QEMU.Args[1:len(c.QEMU.Args):len(c.QEMU.Args)], args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/", "LC_ALL=C.UTF-8"}, c.QEMU.Env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &m.stderr, &m.stderr
	cmd.WaitDelay = grace.Here()
	cmd.ExtraFiles = fds
	if m.child, err = proc.StartChild(cmd); err != nil {
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	m.log.Debug("QEMU started", "machine", m.name, "pid", cmd.Process.Pid, "accel", accel, "args", cmd.Args)
	if c.Started != nil {
		signal, instead, err := c.Started(ctx, m.PID(), host[qmpChannel])
		if signal != nil {
			m.child.SignalBy(signal)
		}
		if err != nil {
			m.child.End(0)
			return nil, err
		}
		_ = host[qmpChannel].Close()
		host[qmpChannel] = instead
	}
	for _, b := range m.net {
		b.done = make(chan struct{})
		go b.accept(m.PID())
	}
	m.conIn = host[consoleChannel]
	go func() {
		_, _ = io.Copy(m.con, m.conIn)
		close(m.conOK)
	}()
	m.qmp = newQMP(host[qmpChannel])
	results := agent.Conn(host[resultsChannel])
	if c.ResultsPort {
		results = newFirstToSpeak(host[resultsChannel], host[portChannel])
	}
	m.agent = agent.NewClient(results)
	return m, nil
}

// gather puts readers into one sealed memfd, one after the other.
func gather(list []io.Reader) (*os.File, error) {
	f, err := memfd("vnic-initrd")
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(f, io.MultiReader(list...)); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func memfd(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// NewMemory makes shared memory for a guest's RAM: a memfd of a fixed size that takes up only what
// is touched.
func NewMemory(name string, size uint64) (*os.File, error) {
	f, err := memfd(name)
	if err != nil {
		return nil, err
	}
	if err = f.Truncate(int64(size)); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory of %d bytes: %w", size, err), f.Close())
	}
	return f, nil
}

// socketPair makes a connected pair of stream sockets: one for this process, one to be inherited.
func socketPair() (net.Conn, *os.File, error) {
	ours, theirs, err := scm.Pair()
	if err != nil {
		return nil, nil, err
	}
	f, err := theirs.File() // a duplicate
	if err = errors.Join(err, theirs.Close()); err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	return ours, f, nil
}

// Name is the machine's name.
func (m *Machine) Name() string { return m.name }

// Accel is how QEMU runs the guest's code.
func (m *Machine) Accel() Accel { return m.accel }

// Agent is the guest's agent on the results channel.
func (m *Machine) Agent() *agent.Client { return m.agent }

// PID is QEMU's process id.
func (m *Machine) PID() int { return m.child.PID() }

// RAM is guest RAM: a file, or one for each socket of a Tree, which Close closes.
func (m *Machine) RAM() []*os.File { return m.ram }

func (m *Machine) closeRAM() {
	for _, f := range m.ram {
		_ = f.Close()
	}
}

// Console gives the last of the guest's console (up to 256 KiB).
func (m *Machine) Console() []byte { return m.con.bytes() }

// Done is closed when QEMU has ended and nothing of it is left.
func (m *Machine) Done() <-chan struct{} { return m.done }

// Wait waits until QEMU has ended and says how: nil after the guest's power-off or Close, else a
// *RunError.
func (m *Machine) Wait() error {
	<-m.done
	return m.err
}

// PowerOff asks the guest to power off and waits for the end, as Wait does.
func (m *Machine) PowerOff(ctx context.Context) error {
	if err := m.agent.Call(ctx, "poweroff", nil, nil); err != nil && !errors.Is(err, agent.ErrClosed) {
		return fmt.Errorf("%s: %w", m.name, err)
	}
	select {
	case <-m.done:
		return m.err
	case <-ctx.Done():
		return fmt.Errorf("%s: power off: %w", m.name, ctx.Err())
	}
}

// Close ends QEMU, by force when it must, and frees everything. It may be called more than once. A
// run that had gone wrong before gives its error.
func (m *Machine) Close() error {
	m.askOne.Do(func() { close(m.ask) })
	<-m.done
	m.closeRAM()
	return m.err
}

// watch lives as long as QEMU does and decides what its end means.
func (m *Machine) watch(ctx context.Context, silence, bootLimit, timeLimit time.Duration) {
	defer close(m.done)
	boot, limit := time.NewTimer(bootLimit), time.NewTimer(timeLimit)
	defer boot.Stop()
	defer limit.Stop()
	silent := time.NewTimer(cmp.Or(silence, timeLimit))
	defer silent.Stop()
	booted, ctxDone, ask, events := m.agent.Booted(), ctx.Done(), m.ask, m.qmp.events
	agentDone := m.agent.Done()
	if _, err := m.command(commandCapabilities); err == nil {
		m.checkStatus() // events before this were lost
	}
	for {
		if m.cause != nil {
			m.end()
			m.finish()
			return
		}
		select {
		case <-m.child.Done():
			m.finish()
			return
		case e, ok := <-events:
			if !ok {
				events = nil
			} else {
				m.event(e)
			}
		case <-booted:
			boot.Stop()
			silent.Stop()
			booted = nil
			close(m.up)
		case <-agentDone:
			agentDone = nil
			if err := m.agent.Err(); errors.As(err, new(version.Error)) { // else the guest ends by itself
				m.cause = err
			}
		case <-ctxDone:
			m.cause = ctx.Err()
		case <-boot.C:
			m.cause, m.detail = ErrNoInit, fmt.Sprintf("after %v", bootLimit)
		case <-silent.C:
			if left := silence - m.con.silent(); left > 0 {
				silent.Reset(left)
			} else if silence > 0 {
				m.cause, m.detail = ErrSilent, fmt.Sprintf("for %v", silence.Round(100*time.Millisecond))
			}
		case <-limit.C:
			m.cause, m.detail = ErrTimeLimit, timeLimit.String()
		case <-ask:
			m.cause = errClosed
		}
	}
}

// errClosed is the cause of an end that the caller asked for.
var errClosed = errors.New("closed")
