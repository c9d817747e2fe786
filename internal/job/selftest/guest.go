package selftest

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/guestexec"
	"vnic.dev/vnic/internal/guestroot"
	"vnic.dev/vnic/internal/job/selftest/expect"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets/selftests"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/terminal"
	"vnic.dev/vnic/internal/wire"
)

//go:embed setup.sh
var setupScript string

// The test irq.py needs three CPUs. With guestCPUs and DefaultQueues toeplitz.py skips its cases rps_*, which need two
// more CPUs than queues.
const (
	guestCPUs   = 4
	guestRAM    = 2 << 30
	gpuMemory   = 256 << 20
	gpuNode     = "1" // NUMA node of the GPU's memory, with gve
	prefixV6    = "fd00:76:6e::/64"
	remoteNetns = "remote"
)

// bench is the lab (a Session) whose first guest runs the tests, and the files from which that guest boots.
type bench struct {
	*session.Session // nil: no guest runs
	opt              *Options
	im               *machine.Images
	images           *selftests.Images
	disks            []qemu.Disk
	mounts           []guestroot.Image // where the guest mounts the disks
	maxMTU           int               // maximum MTU of the guest's NICs, as wants has set it
	splats           *console

	expected *expect.Expectations // for the NIC and the kernel; nil: none

	logs       []*os.File
	consoleLog io.Writer

	ended bool          // the user had a shell, which ends the run
	began time.Time     // when Do began
	first time.Duration // time from began to the first test; 0: no test yet
}

// describe returns the description of the lab. Without Device it is a guest with a GPU and two NICs of the model: the
// first one is tested and reaches the GPU, the second is the tests' remote end. With Device the lab has no GPU and no
// NICs for the guest.
func (o *Options) describe(maxMTU int) lab.Description {
	if o.Device != "" { // QEMU emulates the NICs; the second guest is there because a lab needs a port
		return lab.Description{Guests: []lab.Guest{{Name: "guest"}, {NICs: []lab.NIC{{Model: lab.Virtio}}}}}
	}
	nic := lab.NIC{Model: o.NIC, QueuePairs: o.Queues, NICOptions: o.NICOptions,
		Timestamps: o.NIC == lab.GVE,
		// Tests send from made-up addresses, and forward packets.
		Link: wire.LinkOptions{Identity: &wire.Identity{Any: true, Router: true}}}
	nic.MaxMTU = maxMTU
	first, second := nic, nic
	first.GPUs, second.GPUs = []int{0}, []int{}
	first.Sabotage = o.Sabotage // the tested NIC
	return lab.Description{Guests: []lab.Guest{{Name: "guest", IOMMU: o.IOMMU, NICs: []lab.NIC{first, second},
		GPUs: []lab.GPU{{Memory: gpuMemory}}}}}
}

// wants sets maxMTU to what a program needs. If that changes it, wants ends the guest, if one runs.
func (b *bench) wants(p *program) error {
	maxMTU := b.opt.MaxMTU
	if b.opt.Device == "" && slices.Contains(smallFrames[b.opt.NIC], p.name) {
		maxMTU = b.opt.MTU
	}
	if b.maxMTU == maxMTU {
		return nil
	}
	b.maxMTU = maxMTU
	return b.shut()
}

// open opens the images that become the guest's disks; close closes them.
func (b *bench) open() (err error) {
	for _, im := range []struct{ path, where string }{{b.images.Root, ""}, {b.images.Tests, "/ks"},
		{b.images.Changed, "/ks"}, {b.images.Modules, "/usr/lib/modules/" + b.im.Kernel.Version}, {b.images.Patched,
			"/patched"}} {
		if im.path == "" {
			continue
		}
		f, err := os.Open(im.path)
		if err != nil {
			return err
		}
		serial := fmt.Sprintf("vnic-%d", len(b.disks))
		b.disks = append(b.disks, qemu.Disk{File: f, Serial: serial, ReadOnly: true})
		b.mounts = append(b.mounts, guestroot.Image{Serial: serial, At: im.where})
	}
	return nil
}

// boot makes the lab, boots the guest and makes it mount the images as its root.
func (b *bench) boot(ctx context.Context) (err error) {
	b.splats = newConsole(b.consoleLog)
	if b.Session, err = session.Open(ctx, &b.opt.Common, session.World{
		Lab:    b.opt.describe(b.maxMTU),
		Images: func(context.Context) (*machine.Images, error) { return b.im, nil },
		Guests: []session.BootConfig{{Title: "guest", Memory: guestRAM, CPUs: guestCPUs, TimeLimit: forever,
			Disks: b.disks, Complete: b.complete}},
		During: "while tests ran",
	}); err != nil {
		return err
	}
	if err := b.Boot(ctx); err != nil {
		return errors.Join(err, b.shut())
	}
	if err := guestroot.Mount(ctx, b.guest().Agent(), b.mounts); err != nil {
		return b.Blame(ctx, err)
	}
	return nil
}

// complete implements session.BootConfig.Complete: it sets the fields of c that are special to this command's guest.
func (b *bench) complete(c *machine.Config) (done func(), err error) {
	c.Agent = agent.Config{Hostname: "vnic", Port: true}
	c.Console, c.ResultsPort, c.Append, c.Args = b.splats, true, "nokaslr", b.opt.ownNICs()
	if b.opt.GDB != 0 {
		c.Args = append(c.Args, "-gdb", fmt.Sprintf("tcp:127.0.0.1:%d", b.opt.GDB))
		b.opt.Note("gdb: target remote 127.0.0.1:%d", b.opt.GDB)
	}
	return func() {}, nil
}

const forever = 365 * 24 * time.Hour // time limit of the guest: each program has its own

func (b *bench) guest() *machine.Guest { return b.Guests[0].QEMU }

func (b *bench) shut() error {
	if b.Session == nil {
		return nil
	}
	err := b.Session.Close()
	b.Session = nil
	return err
}

func (b *bench) close() error {
	errs := []error{b.shut()}
	for _, d := range b.disks {
		errs = append(errs, d.File.Close())
	}
	for _, f := range b.logs {
		errs = append(errs, f.Close())
	}
	if b.images != nil {
		errs = append(errs, b.images.Close())
	}
	errs = append(errs, b.im.Close())
	return errors.Join(errs...)
}

// devices maps the models that Options.Device may name to the kernel modules of their drivers.
var devices = map[string][]string{"virtio-net-pci": {"virtio_net"}, "vmxnet3": {"vmxnet3"}, "e1000e": {"e1000e"}}

// ownNICs returns QEMU's arguments for two NICs of Options.Device on a hub; without Device, none.
func (o *Options) ownNICs() (args []string) {
	if o.Device == "" {
		return nil
	}
	for i := range 2 {
		id := fmt.Sprintf("own%d", i)
		device := fmt.Sprintf("%s,netdev=%s,mac=%s,romfile=", o.Device, id, mac(i))
		if o.Device == "virtio-net-pci" {
			device += fmt.Sprintf(",host_mtu=%d,disable-legacy=on", o.MaxMTU)
		}
		args = append(args, "-netdev", "hubport,id="+id+",hubid=0", "-device", device)
	}
	return args
}

// mac returns the MAC of the tested NIC (0), or of its remote end (1).
func mac(i int) string {
	m := lab.MAC(i)
	return net.HardwareAddr(m[:]).String()
}

// env returns the environment of setup.sh, of the tests (tools/testing/selftests/drivers/net/README.rst) and of the
// user's shell.
func (b *bench) env() []string {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "NO_COLOR=1",
		"PYTHONDONTWRITEBYTECODE=1",
		"NETIF=eth0", "LOCAL_V4=" + lab.Addr4(0).Addr().String(), "LOCAL_V6=" + lab.Addr6(0).Addr().String(),
		"REMOTE_V4=" + lab.Addr4(1).Addr().String(), "REMOTE_V6=" + lab.Addr6(1).Addr().String(),
		"LOCAL_PREFIX_V6=" + prefixV6, "REMOTE_TYPE=netns", "REMOTE_ARGS=" + remoteNetns, "KSFT_MACHINE_SLOW=1",
		"MAC0=" + mac(0), "MAC1=" + mac(1), fmt.Sprintf("MTU=%d", b.opt.MTU),
		fmt.Sprintf("PREFIX=%d %d", lab.Addr4(0).Bits(), lab.Addr6(0).Bits())}
	if b.opt.Device == "" && b.opt.NIC == lab.GVE {
		env = append(env, "NTUPLE=on", "GPU_NODE="+gpuNode)
	}
	env = append(env, limits.Environ()...)
	if b.opt.Sabotage != nil {
		env = append(env, "FAULTY=on") // without the module that makes the tests' time limits longer: they wait in vain
	} else {
		env = append(env, "PYTHONPATH=/ks/"+selftests.PythonPath)
	}
	return env
}

// exec runs a program in the guest, in the directory dir, until its end. The error names a guest that has ended.
func (b *bench) exec(ctx context.Context, dir string, stdout, stderr io.Writer, args ...string) (guestexec.Status,
	error) {
	st, err := guestexec.Run(ctx, b.guest().Agent(), guestexec.Command{Path: args[0], Args: args, Dir: dir,
		Env: append(b.env(), "TERM=dumb"), Stdout: stdout, Stderr: stderr})
	if err != nil {
		err = b.Blame(ctx, err)
	}
	return st, err
}

// prepare runs setup.sh in the guest, for limits.SelftestSetup at most. A status other than 0 is an error.
func (b *bench) prepare(ctx context.Context) error {
	limit := limits.SelftestSetup.Here()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done within %v", limit))
	defer cancel()
	var output bytes.Buffer
	st, err := b.exec(ctx, "/", &output, &output, "/bin/bash", "-c", setupScript)
	if err == nil && st.Exit() != 0 {
		words := agent.Plain(strings.ReplaceAll(output.String(), "\n", " "))
		err = fmt.Errorf("status %d: %s", st.Exit(), strings.TrimSpace(words))
	}
	if err != nil {
		return fmt.Errorf("set up the guest's interfaces: %w", err)
	}
	return nil
}

// shell gives the user a shell in the guest, in a program's directory and with the tests' environment, and returns when
// it has ended or the user has left it.
func (b *bench) shell(ctx context.Context, dir string, p *program) error {
	o := b.opt
	o.Note("a shell in the guest, as it is after %s: ./%s runs it again, exit ends the run", p.name, path.Base(p.name))
	o.Doing("")
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	t := terminal.Take(o.Stdin, o.Stdout, o.Stderr, terminal.Actions{Leave: func() { leave(terminal.ErrLeft) },
		Help: func() { o.Note("%s", terminal.Help) }, Lost: func() { o.Note("%s", terminal.Lost) }})
	defer t.Close()
	t.Start()
	c := guestexec.Command{Path: "/bin/bash", Args: []string{"bash"}, Dir: dir, Env: b.env(), Stdout: o.Stdout,
		Stderr: o.Stderr, TTY: t.TTY, Size: t.Size(), Resize: t.Resize}
	if t.In != nil {
		c.Stdin = t.In
	}
	if v := os.Getenv("TERM"); v != "" {
		c.Env = append(c.Env, "TERM="+v)
	}
	if _, err := guestexec.Run(ctx, b.guest().Agent(), c); err != nil {
		return b.Blame(ctx, err)
	}
	return nil
}
