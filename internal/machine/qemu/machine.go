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
	"slices"
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

// GPU is GPU memory in the guest: BAR 2 of an ivshmem-plain (1af4:1110), or a NUMA node, which in a Tree has such a
// BAR, too.
type GPU struct {
	File *os.File // shared; the caller closes it
	Size uint64   // BAR: a power of two from 4096; node: a multiple of 2 MiB
	// Node makes it a NUMA node without CPUs. The nodes of guest RAM come first: node 0, or a Tree's sockets.
	Node    bool
	Place   string // name of an endpoint in Config.Tree; "": none
	Hotplug bool   // UnplugGPU can remove it; needs a Place in a Tree, and no Node
}

// Config describes one machine.
type Config struct {
	Name   string // for logs and errors; "" = "guest"
	QEMU   assets.Binary
	Kernel assets.Kernel
	Initrd []io.Reader // concatenated
	Append string      // at the end of the kernel's command line

	RAMSize uint64 // in bytes, a multiple of 2 MiB; 0 = 512 MiB
	CPUs    int    // 0 = 1
	Accel   Accel
	Cache   string // for the result of AccelAuto's probe; "" = the default cache (assets.CacheDir)
	GPUs    []GPU
	Netdevs []Netdev
	Disks   []Disk
	Tree    *pcie.Tree // with each Place; may be nil
	// ForwardsP2P makes an emulated CPU AMD's Zen, so that the guest's kernel assumes that host bridges forward
	// peer-to-peer requests (drivers/pci/p2pdma.c, cpu_supports_p2pdma). With KVM the host's CPU decides.
	ForwardsP2P bool
	// IOMMU gives the machine an Intel IOMMU (VT-d). A virtio device bypasses it unless its option iommu_platform is on.
	IOMMU bool
	Args  []string // more arguments for QEMU, at the end
	// ResultsPort also offers the results channel as a virtio-serial port (agent.PortName), faster than a serial
	// line. The guest picks one (agent.Config.Port).
	ResultsPort bool

	Console io.Writer // receives a copy of the console's output; may be nil
	// Silence limits the time without console output before init reports. 0 = limits.GuestSilence.Here() if
	// AccelAuto chooses KVM and BootLimit is not above limits.Boot.Here(), else no limit.
	Silence   time.Duration
	BootLimit time.Duration // from QEMU's start (or Started's return) until init reports; 0 = limits.Boot.Here()
	TimeLimit time.Duration // from QEMU's start (or Started's return) until its end; 0 = limits.Machine.Here()
	Log       *slog.Logger  // may be nil

	// Started, if not nil, is called when QEMU's process exists, before its console is read and its devices'
	// connections are accepted: it may wait, and drop this process's privileges.
	Started Started

	key probeKey // of the accelerator's probe; zero for AccelTCG
}

// Started receives QEMU's process id and a connection to its monitor (QMP), which Start closes later. It returns
// signal, which sends a signal to QEMU, and instead, the connection to the monitor that Start then uses; this one may
// allow only Commands. Neither is nil if err is nil.
type Started func(ctx context.Context, pid int, monitor net.Conn) (signal func(syscall.Signal) error,
	instead net.Conn, err error)

// Commands are the QMP commands that a Machine sends, with the keys "execute" and "id". Only device_del has
// "arguments": "id", which begins with DevicePrefix.
var Commands = []string{commandCapabilities, commandStatus, commandQuit, commandUnplug}

// Machine is a QEMU that Start has started. Its methods may be called concurrently.
type Machine struct {
	name   string
	qemu   string // "QEMU" and its version, if that is known
	kernel assets.Kernel
	accel  Accel
	log    *slog.Logger
	child  *proc.Child
	ram    []*os.File // guest memory

	physical []Extent
	con      *console
	conIn    net.Conn
	conRead  sync.WaitGroup // of the goroutine that reads the console
	qmp      *qmp
	agent    *agent.Client
	net      []*backendSocket

	unplugs unplugs

	ask    chan struct{} // closed by Close
	askOne sync.Once
	up     chan struct{} // closed when init has reported
	done   chan struct{} // closed when the run has ended
	err    error         // set before done is closed
	stderr agent.Tail    // the last 8 KiB of QEMU's stdout and stderr

	record func(*RunError) *record // nil without AccelAuto

	// Used by watch.
	shutdown string // reason of the SHUTDOWN event; "": none
	cause    error  // why this process ends QEMU; nil: it does not
	detail   string
}

// Start starts QEMU and returns once the guest's init has reported, or with an error. The machine ends when ctx ends.
// The caller calls Close.
func Start(ctx context.Context, c Config) (*Machine, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	accel, err := c.choose(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	c.BootLimit = cmp.Or(c.BootLimit, limits.Boot.Here()) // the probe may have changed limits
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
		if c.BootLimit <= limits.Boot.Here() { // with a longer limit the user may have paused the guest
			limits.Booted(time.Since(begin))
		}
		return m, nil
	case <-m.done:
	}
	m.closeRAM()
	if m.err == nil { // init reported, and the guest powered off at once
		return nil, &RunError{Name: m.name, Err: ErrPowerOff, Console: proc.LastLines(m.Console(), consoleLines)}
	}
	return nil, m.err
}

func (c *Config) choose(ctx context.Context) (Accel, error) {
	if c.Accel == AccelTCG {
		return AccelTCG, nil
	}
	var err error
	if c.Cache, err = assets.CacheDir(assets.Options{CacheDir: c.Cache}); err != nil {
		return "", err
	}
	c.key = keyOf(c.QEMU, c.Kernel) // later this process may lose the right to read the boot's id
	accel, why, err := ChooseAccel(ctx, &assets.Resolved{Cache: c.Cache, QEMU: c.QEMU, Kernel: c.Kernel}, c.Accel)
	c.Log.Info("accelerator chosen", "machine", c.Name, "accel", accel, "why", why)
	return accel, err
}

// launch starts QEMU, and the goroutines that read or accept its connections.
func launch(ctx context.Context, c *Config, accel Accel) (_ *Machine, err error) {
	m := &Machine{
		name: c.Name, qemu: strings.TrimSpace("QEMU " + c.QEMU.Version), kernel: c.Kernel, accel: accel,
		log: c.Log, con: newConsole(c.Console),
		ask: make(chan struct{}), up: make(chan struct{}), done: make(chan struct{}),
		stderr: agent.Tail{Max: 8 << 10},
	}
	m.unplugs.init(c)
	var in inherited
	host := map[string]net.Conn{} // this process's ends of channels
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
	if err := m.open(c, &in, host); err != nil {
		return nil, err
	}
	in.sandbox = hasSandbox(ctx, c.QEMU)
	args, fds := arguments(c, accel, in)
	cmd := exec.Command(c.QEMU.Args[0], slices.Concat(c.QEMU.Args[1:], args)...)
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
		b.accepting.Go(func() { b.accept(m.PID()) })
	}
	m.conIn = host[consoleChannel]
	m.conRead.Go(func() { _, _ = io.Copy(m.con, m.conIn) })
	m.qmp = newQMP(host[qmpChannel])
	results := agent.Conn(host[resultsChannel])
	if c.ResultsPort {
		results = newFirstToSpeak(host[resultsChannel], host[portChannel])
	}
	m.agent = agent.NewClient(results)
	return m, nil
}

// open makes the RAM, the initramfs, the channels and the backends' sockets. It puts this process's ends of channels
// into host, by name. After an error launch closes what open has made.
func (m *Machine) open(c *Config, in *inherited, host map[string]net.Conn) error {
	for _, size := range c.ramSizes() {
		f, err := NewMemory("vnic-ram", size)
		if err != nil {
			return err
		}
		m.ram = append(m.ram, f)
	}
	in.ram, m.physical = m.ram, physical(c.nodeFiles(m.ram))
	var err error
	if in.initrd, err = gather(c.Initrd); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	names := []string{consoleChannel, resultsChannel, qmpChannel}
	if c.ResultsPort {
		names = append(names, portChannel)
	}
	for _, name := range names {
		ours, theirs, err := socketPair()
		if err != nil {
			return err
		}
		host[name], in.channels = ours, append(in.channels, channel{name, theirs})
	}
	for i := range c.Netdevs {
		if n := &c.Netdevs[i]; n.Connected != nil {
			b, err := newBackendSocket(n.Connected, n.VFIOUser)
			if err != nil {
				return err
			}
			m.net = append(m.net, b)
			n.abstract, n.socket = b.name, b.file
		}
	}
	return nil
}

// gather writes readers' data into a sealed memfd.
func gather(list []io.Reader) (*os.File, error) {
	return memfd("vnic-initrd", unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW, func(f *os.File) error {
		_, err := io.Copy(f, io.MultiReader(list...))
		return err
	})
}

// NewMemory makes shared memory: a memfd of fixed size, whose pages are allocated when touched.
func NewMemory(name string, size uint64) (*os.File, error) {
	return memfd(name, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW, func(f *os.File) error {
		if err := f.Truncate(int64(size)); err != nil {
			return fmt.Errorf("memory of %d bytes: %w", size, err)
		}
		return nil
	})
}

// memfd makes a memfd, calls the function write to fill or to size it, and seals it.
func memfd(name string, seals int, write func(*os.File) error) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err = write(f); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// socketPair makes a pair of stream sockets, for this process and for QEMU.
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

// Name returns the machine's name.
func (m *Machine) Name() string { return m.name }

// Accel returns how QEMU runs the guest's code.
func (m *Machine) Accel() Accel { return m.accel }

// Agent returns the client of the guest's agent.
func (m *Machine) Agent() *agent.Client { return m.agent }

// PID returns QEMU's process id.
func (m *Machine) PID() int { return m.child.PID() }

// RAM returns the files of guest RAM: one, or one per socket of a Tree. Close closes them.
func (m *Machine) RAM() []*os.File { return m.ram }

func (m *Machine) closeRAM() {
	for _, f := range m.ram {
		_ = f.Close()
	}
}

// Console returns the last output of the console, up to 256 KiB.
func (m *Machine) Console() []byte { return m.con.bytes() }

// Done returns a channel that is closed when the run has ended.
func (m *Machine) Done() <-chan struct{} { return m.done }

// PowerOff asks the guest to power off, and waits until QEMU has ended or ctx ends.
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

// Close ends QEMU and frees what the Machine holds; it may be called again. It returns the error of a run that had
// failed before.
func (m *Machine) Close() error {
	m.askOne.Do(func() { close(m.ask) })
	<-m.done
	m.closeRAM()
	return m.err
}

// watch runs while QEMU does, and determines the run's result.
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
		m.checkStatus() // QEMU sends no events before this command
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
			if err := m.agent.Err(); errors.As(err, new(version.Error)) { // else the guest ends by itself, or at a limit
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

var errClosed = errors.New("closed")
